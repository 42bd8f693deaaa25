"""`fedamp_jax.data.sources`: files, cache and downloads of small archives made here; no test needs the internet."""

import functools
import gzip
import hashlib
import http.server
import io
import socket
import struct
import subprocess
import sys
import tarfile
import threading
import time
import types
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedamp_jax import data
from fedamp_jax.data import sources

ROOT = Path(__file__).parents[2]
RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (5, 28, 28)).astype(np.uint8)
COLOUR = RNG.integers(0, 256, (6, 32, 32, 3)).astype(np.uint8)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache folder, and no proxies."""
    for variable in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(variable, raising=False)
        monkeypatch.delenv(variable.upper(), raising=False)
    monkeypatch.setenv("FEDAMP_JAX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def idx(array):
    """`array` as a gzipped IDX file."""
    return gzip.compress(struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes())


def mnist_files():
    y = np.array([3, 1, 0, 9, 9], np.uint8)
    return {
        "train-images-idx3-ubyte.gz": idx(GREY),
        "train-labels-idx1-ubyte.gz": idx(y),
        "t10k-images-idx3-ubyte.gz": idx(GREY[:2]),
        "t10k-labels-idx1-ubyte.gz": idx(y[:2]),
    }


def zipped(members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def emnist_files():
    """NIST's format: transposed images."""
    y = np.array([61, 10, 0, 36, 9], np.uint8)
    members = {}
    for part, n in (("train", 5), ("test", 3)):
        members[f"gzip/emnist-byclass-{part}-images-idx3-ubyte.gz"] = idx(GREY[:n].transpose(0, 2, 1).copy())
        members[f"gzip/emnist-byclass-{part}-labels-idx1-ubyte.gz"] = idx(y[:n])
    return {"gzip.zip": zipped(members)}


def tarred(members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def records(*columns):
    """Binary CIFAR records of `COLOUR` with one byte per label column."""
    planes = COLOUR.transpose(0, 3, 1, 2).reshape(len(COLOUR), -1)
    return [bytes([int(c[i]) for c in columns]) + planes[i].tobytes() for i in range(len(COLOUR))]


def cifar10_files():
    one = records(np.arange(6))
    members = {f"cifar-10-batches-bin/data_batch_{i}.bin": one[i - 1] for i in (5, 4, 3, 2, 1)}  # out of order
    return {"cifar-10-binary.tar.gz": tarred(members | {"../../test_batch.bin": one[5]})}


def cifar100_files():
    both = records([0, 1, 2, 3, 4, 19], [10, 11, 12, 13, 14, 99])
    members = {"cifar-100-binary/train.bin": b"".join(both[:5]), "cifar-100-binary/test.bin": both[5]}
    return {"cifar-100-binary.tar.gz": tarred(members)}


def omniglot_files():
    """105 x 105 drawings with one square of ink, in two archives."""
    from PIL import Image

    def drawing(row):
        pixels = np.full((105, 105), 255, np.uint8)
        pixels[15 * row : 15 * row + 15, :15] = 0  # 15 pixels become 4 of 3.75 pixels each
        out = io.BytesIO()
        Image.fromarray(pixels).convert("1").save(out, "PNG")
        return out.getvalue()

    background = {f"images_background/{a}/character{c:02}/0001_{d:02}.png": drawing(c)
                  for a in ("Braille", "Arcadian") for c in (1, 2) for d in (1, 20)}  # fmt: skip
    evaluation = {"images_evaluation/Angelic/character03/0965_07.png": drawing(3), "images_evaluation/": b""}
    return {"images_background.zip": zipped(background), "images_evaluation.zip": zipped(evaluation)}


def served(monkeypatch, tmp_path, files):
    """Replaces `sources._download`, so that `files` are unpacked without a download."""
    folder = tmp_path / "served"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    monkeypatch.setattr(sources, "_registered", lambda name: {f: f"https://example.invalid/{f}" for f in files})
    monkeypatch.setattr(sources, "_unreachable", lambda url: None)
    monkeypatch.setattr(sources, "_download", lambda name, urls, target: {f: folder / f for f in urls})


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_idx_files(name, monkeypatch, tmp_path, cache):
    """Fails if the header is assumed to have 16 bytes for labels too, or if test and training are swapped."""
    served(monkeypatch, tmp_path, mnist_files())
    source = data.load(name)
    np.testing.assert_array_equal(source.x_train, GREY)
    np.testing.assert_array_equal(source.x_test, GREY[:2])
    assert source.y_train.tolist() == [3, 1, 0, 9, 9] and source.y_test.tolist() == [3, 1]
    assert source.y_train.dtype == np.int32 and source.classes == 10 and source.coarse_train is None
    assert [p.name for p in cache.iterdir()] == [f"{name}.npz"]  # no archives or temporary files remain


def test_emnist_is_turned_upright(monkeypatch, tmp_path):
    """Fails if images are not transposed."""
    served(monkeypatch, tmp_path, emnist_files())
    source = data.load("emnist")
    np.testing.assert_array_equal(source.x_train, GREY)
    assert source.y_train.tolist() == [61, 10, 0, 36, 9] and len(source.x_test) == 3 and source.classes == 62


def test_cifar10_batches_are_in_order_and_no_file_is_written_elsewhere(monkeypatch, tmp_path, cache):
    """Fails if members are joined in the archive's order, or if a `../` member is extracted to its path."""
    served(monkeypatch, tmp_path, cifar10_files())
    before = sorted(p for p in tmp_path.rglob("*") if p.is_file())
    source = data.load("cifar10")
    np.testing.assert_array_equal(source.x_train, COLOUR[:5])
    np.testing.assert_array_equal(source.x_test, COLOUR[5:])
    assert source.y_train.tolist() == [0, 1, 2, 3, 4] and source.y_test.tolist() == [5]
    assert sorted(p for p in tmp_path.rglob("*") if p.is_file()) == sorted([*before, cache / "cifar10.npz"])


def test_cifar100_coarse_comes_before_fine(monkeypatch, tmp_path):
    """Fails if the two label bytes are swapped."""
    served(monkeypatch, tmp_path, cifar100_files())
    source = data.load("cifar100")
    np.testing.assert_array_equal(source.x_train, COLOUR[:5])
    assert source.y_train.tolist() == [10, 11, 12, 13, 14] and source.coarse_train.tolist() == [0, 1, 2, 3, 4]
    assert source.y_test.tolist() == [99] and source.coarse_test.tolist() == [19] and source.classes == 100


def test_omniglot_is_resized_with_bright_ink(monkeypatch, tmp_path):
    """Fails without the inversion, with Pillow's default filter, or if each archive numbers alphabets from 0."""
    served(monkeypatch, tmp_path, omniglot_files())
    source = data.load("omniglot")
    assert isinstance(source, data.Omniglot) and source.x.shape == (9, 28, 28)
    assert source.alphabet.tolist() == [0] * 4 + [1] * 4 + [2]  # Arcadian, Braille, then the evaluation set
    assert source.character.tolist() == [1, 1, 2, 2, 1, 1, 2, 2, 3] and source.drawer.tolist() == [1, 20] * 4 + [7]
    for image, row in zip(source.x, source.character, strict=True):
        expected = np.zeros((28, 28), np.uint8)
        expected[4 * row : 4 * row + 4, :4] = 255
        np.testing.assert_array_equal(image, expected)


def test_the_cache_is_used_unless_data_dir_is_given(monkeypatch, tmp_path):
    """Fails if every call unpacks again, or if data_dir falls back to the cache."""
    served(monkeypatch, tmp_path, mnist_files())
    data.load("mnist")
    monkeypatch.setattr(sources, "_registered", lambda name: pytest.fail("asked for a download"))
    np.testing.assert_array_equal(data.load("mnist").x_train, GREY)
    with pytest.raises(FileNotFoundError, match="elsewhere"):
        data.load("mnist", tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()


@pytest.fixture
def registry(monkeypatch, tmp_path):
    """A local HTTP server for TFDS's download manager.

    `registry(files, sent)` registers the checksums of `files`, but serves the contents in `sent` where given.
    """
    tfds = pytest.importorskip("tensorflow_datasets")
    from tensorflow_datasets.core.download import checksums

    folder = tmp_path / "www"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()

    def register(files, sent=None):
        infos = {}
        for name, content in files.items():
            (folder / name).write_bytes((sent or {}).get(name, content))
            url = f"http://127.0.0.1:{server.server_port}/{name}"
            infos[url] = checksums.UrlInfo(len(content), hashlib.sha256(content).hexdigest(), name)
        monkeypatch.setattr(tfds, "builder_cls", lambda name: types.SimpleNamespace(url_infos=infos))

    yield register
    server.shutdown()
    server.server_close()
    thread.join()


def test_download_through_tfds(registry, cache):
    """The real download manager and a local server. Fails if url_infos are not passed on."""
    registry(mnist_files())
    np.testing.assert_array_equal(data.load("mnist").x_train, GREY)
    assert [p.name for p in cache.iterdir()] == ["mnist.npz"]


@pytest.mark.parametrize("how", ["cut", "changed"])
def test_a_partial_or_changed_download_is_never_kept(how, registry, cache):
    """Fails if neither url_infos nor force_checksums_validation is passed to the download manager."""
    files = mnist_files()
    complete = files["train-images-idx3-ubyte.gz"]
    other = complete[:-100] if how == "cut" else idx(GREY[::-1].copy())
    registry(files, sent={"train-images-idx3-ubyte.gz": other})
    with pytest.raises(OSError, match=r"nothing was kept .NonMatchingChecksumError") as caught:
        data.load("mnist")
    assert str(cache / "mnist.npz") in str(caught.value) and list(cache.iterdir()) == []
    registry(files)
    np.testing.assert_array_equal(data.load("mnist").x_train, GREY)


def test_unpacked_data_are_checked_before_they_are_cached(monkeypatch, tmp_path, cache):
    """Fails if they are moved into the cache first: every later call would read the same wrong file."""
    served(monkeypatch, tmp_path, mnist_files() | {"t10k-labels-idx1-ubyte.gz": idx(np.array([3], np.uint8))})
    with pytest.raises(OSError, match=r"y_test of .* is uint8 \[1\]"):
        data.load("mnist")
    assert list(cache.iterdir()) == []


def test_an_interrupted_unpacking_leaves_no_cache(monkeypatch, tmp_path, cache):
    """Fails if np.savez writes to the final path, which every later call would read."""
    served(monkeypatch, tmp_path, mnist_files())
    real = np.savez

    def dies(path, **arrays):
        real(path, **dict(list(arrays.items())[:2]))
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", dies)
    with pytest.raises(KeyboardInterrupt):
        data.load("mnist")
    assert list(cache.iterdir()) == []


def test_archives_without_the_expected_members_are_an_error(monkeypatch, tmp_path):
    """Fails if the dictionary's KeyError is raised unchanged."""
    served(monkeypatch, tmp_path, {"cifar-10-binary.tar.gz": tarred({"readme": b"nothing"})})
    with pytest.raises(OSError, match=r"KeyError: 'data_batch_1\.bin'"):
        data.load("cifar10")


@pytest.mark.parametrize(
    "content", [b"", b"\0\0", idx(GREY)[:-1], gzip.compress(gzip.decompress(idx(GREY)).replace(b"\x08", b"\x09", 1))]
)
def test_damaged_idx_files_are_an_error(content, monkeypatch, tmp_path):
    """Fails for the last if the type byte is not checked: signed bytes are read as unsigned."""
    served(monkeypatch, tmp_path, mnist_files() | {"train-images-idx3-ubyte.gz": content})
    with pytest.raises(OSError, match="nothing was kept"):
        data.load("mnist")


@pytest.mark.parametrize("host", ["refused", "silent"])
def test_without_a_network_an_error_is_raised_within_seconds(host, monkeypatch, cache):
    """Fails if TFDS tries first (200 s), or, for "silent", if the name is looked up in the main thread."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    awake = threading.Event()

    def asleep():
        awake.wait(4)
        raise OSError

    monkeypatch.setattr(sources, "PROBE_SECONDS", 0.5)
    monkeypatch.setattr(sources, "_registered", lambda name: {"gzip.zip": f"https://127.0.0.1:{port}/gzip.zip"})
    if host == "silent":
        monkeypatch.setattr(socket, "create_connection", lambda *a, **k: asleep())
    start = time.monotonic()
    with pytest.raises(FileNotFoundError) as caught:
        data.load("emnist")
    assert time.monotonic() - start < 3
    awake.set()
    message = str(caught.value)
    for part in (str(cache / "emnist.npz"), f"127.0.0.1:{port} cannot be reached", "x_train      uint8 [n, 28, 28]",
                 "y_test       integers [n] in 0..61", "data_dir=FOLDER", "data set 'digits' needs"):  # fmt: skip
        assert part in message
    assert not cache.exists()


def test_the_probe_connects_to_the_proxy_if_there_is_one(monkeypatch):
    """Fails if it connects to the host, which a machine behind a proxy cannot reach."""
    with socket.socket() as proxy:
        proxy.bind(("127.0.0.1", 0))
        proxy.listen()
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        assert sources._unreachable("https://host.invalid/file") is None


def test_every_download_is_registered_in_tfds():
    """Fails, with a KeyError, for a file name that TFDS does not know, such as `gzip2.zip`."""
    pytest.importorskip("tensorflow_datasets")
    for name in sources._KINDS:
        assert sources._registered(name)


def good(name="mnist", **changes):
    """Valid arrays of data set `name`, with `changes`; None removes a key."""
    image = COLOUR if name.startswith("cifar") else GREY
    arrays = {}
    for key, want in sources._KINDS[name].schema.items():
        arrays[key] = image[:4] if isinstance(want, tuple) else np.array([0, 1, 1, 2])
    return {key: value for key, value in (arrays | changes).items() if value is not None}


@pytest.mark.parametrize("name", sources._KINDS)
def test_a_users_own_file(name, tmp_path):
    """Every data set is found by its keys, and other keys are ignored. Fails if omniglot is read as a `Source`."""
    np.savez(tmp_path / f"{name}.npz", **good(name), notes=np.array(["extra"]))
    source = data.load(name, str(tmp_path))
    assert source.name == name and source[1].shape[0] == 4 and source[2].dtype == np.int32


def test_a_grayscale_channel_axis_is_removed(tmp_path):
    """Keras and TFDS use [n, 28, 28, 1]. Fails if a channel axis is refused."""
    np.savez(tmp_path / "mnist.npz", **good(x_test=GREY[:4, ..., None]))
    np.testing.assert_array_equal(data.load("mnist", tmp_path).x_test, GREY[:4])


FILES = {
    "key": ("mnist", {"y_test": None}, "lacks y_test; it contains x_train, y_train, x_test. Data set 'mnist' needs"),
    "coarse": ("cifar100", {"coarse_train": None, "coarse_test": None}, "lacks coarse_train, coarse_test"),
    "shape": ("mnist", {"x_train": GREY[:4, :27]}, r"x_train of .* is uint8 \[4, 27, 28\]"),
    "channels first": ("cifar10", {"x_test": COLOUR[:4].transpose(0, 3, 1, 2)}, r"uint8 \[4, 3, 32, 32\]"),
    "floats": ("mnist", {"x_train": GREY[:4] / 255}, r"x_train of .* is float64 \[4, 28, 28\] with values 0.0..1.0"),
    "length": ("mnist", {"y_train": np.zeros(3, int)}, r"y_train of .* is int64 \[3\]"),
    "column of labels": ("mnist", {"y_train": np.zeros((4, 1), int)}, r"is int64 \[4, 1\]"),
    "float labels": ("mnist", {"y_train": np.zeros(4)}, r"is float64 \[4\]"),
    "label": ("mnist", {"y_train": np.array([0, 1, 2, 10])}, r"y_train of .* is int64 \[4\] with values 0..10"),
    "negative label": ("mnist", {"y_test": np.array([0, 1, -1, 2])}, "with values -1..2"),
    "no samples": ("mnist", {"x_test": GREY[:0], "y_test": np.zeros(0, int)}, r"x_test of .* is uint8 \[0, 28, 28\]"),
    "a scalar": ("mnist", {"x_test": np.uint8(1)}, r"x_test of .* is uint8 \[\]"),
    "pickle": (
        "mnist",
        {"y_test": np.array([0, 1, 2, None], object)},
        "not an npz file of plain arrays .*allow_pickle",
    ),
}


@pytest.mark.parametrize(("name", "changes", "message"), FILES.values(), ids=FILES)
def test_a_wrong_file_is_refused(name, changes, message, tmp_path):
    """Fails for "floats" if images are cast to uint8 (mostly zeros), and for "pickle" with allow_pickle=True."""
    np.savez(tmp_path / f"{name}.npz", **good(name, **changes))
    with pytest.raises(ValueError, match=message) as caught:
        data.load(name, tmp_path)
    assert "x_train      uint8" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\3\4 half a file", "npy"])
def test_a_file_that_is_not_an_npz_is_refused(content, tmp_path):
    """Fails for an .npy file with this name, which np.load reads as an array."""
    path = tmp_path / "mnist.npz"
    if content == "npy":
        with path.open("wb") as file:
            np.save(file, GREY)
    else:
        path.write_bytes(content)
    with pytest.raises(ValueError, match="not an npz file of plain arrays"):
        data.load("mnist", tmp_path)


def test_the_message_for_a_missing_file_lists_its_arrays(tmp_path, monkeypatch):
    """Fails if a download into data_dir is attempted."""
    monkeypatch.setattr(sources, "_registered", lambda name: pytest.fail("asked for a download"))
    with pytest.raises(FileNotFoundError) as caught:
        data.load("cifar100", tmp_path)
    message = str(caught.value)
    assert str(tmp_path / "cifar100.npz") in message and "coarse_test  integers [n] in 0..19" in message


def test_an_unknown_name_gets_a_suggestion():
    """Fails if the dictionary's KeyError is raised unchanged."""
    with pytest.raises(ValueError, match=r"'fashion_mnist', .*, got 'fashionmnist'; did you mean 'fashion_mnist'"):
        data.load("fashionmnist")


def test_digits_are_real_stratified_and_always_the_same(tmp_path):
    """Fails if values stay in 0..16, or if the split depends on NumPy's global generator."""
    source, again = data.load("digits"), data.load("digits", tmp_path)  # needs no file, even with data_dir
    for a, b in zip(source, again, strict=True):
        np.testing.assert_array_equal(a, b)
    assert source.x_train.shape == (1297, 8, 8) and source.x_test.shape == (500, 8, 8) and source.classes == 10
    assert source.x_train.dtype == np.uint8 and source.x_train.max() == 255 and source.y_train.dtype == np.int32
    assert np.bincount(source.y_test).tolist() == [50] * 10
    assert np.bincount(source.y_train).tolist() == [128, 132, 127, 133, 131, 132, 131, 129, 124, 130]
    rows = {x.tobytes() for x in source.x_train} & {x.tobytes() for x in source.x_test}
    assert not rows  # all 1,797 images are different


@pytest.mark.slow
def test_importing_the_package_does_not_import_tensorflow():
    """Fails if `import tensorflow_datasets` is at the top of a module."""
    code = (
        "import sys; from fedamp_jax import data; "
        "print([m for m in ('tensorflow', 'tensorflow_datasets') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
