"""Personal models in a file: another process reads them, and what is no such file or of another task is refused."""

import os
import subprocess
import sys

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedamp_jax
from fedamp_jax import Variables, saving
from tests.registry import tiny_task

TASK = tiny_task()
MODELS = jax.vmap(TASK.init)(jax.random.split(jax.random.key(0), 3))
NAMES = ["Oslo", "København", "Berlin"]


def test_what_is_saved_is_loaded(tmp_path):
    """Every bit, with statistics, names and notes. Failed with leaves in the order of their names as strings."""
    path = tmp_path / "models"
    fedamp_jax.save_models(path, TASK, MODELS, names=NAMES, class_names=["a", "b", "c"], about={"sigma": 2.0})
    saved = fedamp_jax.load_models(path, TASK)
    chex.assert_trees_all_equal(saved.models, MODELS)
    assert saved.names == NAMES and saved.class_names == ["a", "b", "c"]
    assert saved.about == {"version": fedamp_jax.__version__, "sigma": 2.0}
    chex.assert_trees_all_equal(saved.of("København"), jax.tree.map(lambda a: a[1], MODELS))
    with pytest.raises(KeyError, match="no client 'Paris': there are 'Oslo', "):
        saved.of("Paris")
    fedamp_jax.save_models(path, TASK, MODELS)  # written over
    chex.assert_trees_all_equal(fedamp_jax.load_models(path, TASK).of(2), jax.tree.map(lambda a: a[2], MODELS))
    assert os.listdir(tmp_path) == ["models"]


def test_a_loaded_model_predicts_with_its_clients_classes(tmp_path):
    """By name and by number, as `fedamp_jax.predict` does. Failed with the logits of classes that a client lacks.

    Without numbers of classes, as in a file of an earlier version, and with 0 for targets, outputs are the model's.
    """
    x, path = jnp.asarray(np.random.default_rng(0).normal(size=(6, 5)), jnp.float32), tmp_path / "models.npz"
    data = fedamp_jax.data.from_lists([x] * 3, [jnp.zeros(6, jnp.int32)] * 3, classes=[2, 3, 1])
    wanted = np.asarray(fedamp_jax.predict(TASK, MODELS, data))
    assert (wanted[2, :, 1:] == -np.inf).all()
    for names, known in ((NAMES, NAMES), (None, range(3))):
        fedamp_jax.save_models(path, TASK, MODELS, names=names, classes=data.classes)
        saved = fedamp_jax.load_models(path, TASK)
        assert saved.classes is not None and saved.classes.tolist() == [2, 3, 1]
        for name, outputs in zip(known, wanted, strict=True):
            np.testing.assert_allclose(saved.predict(name, x), outputs, rtol=1e-5)
    with pytest.raises(KeyError, match="no client 'Paris'"):
        saved.predict("Paris", x)
    for classes in (None, 0):
        fedamp_jax.save_models(path, TASK, MODELS, classes=classes)
        saved = fedamp_jax.load_models(path, TASK)
        np.testing.assert_array_equal(saved.predict(2, x), TASK.predict(saved.of(2), x))


@pytest.mark.parametrize("bad", [("a", 1), None, float("nan"), b"a", ["a"], {"a": 1}], ids=str)
@pytest.mark.parametrize("which", ["names", "class_names"])
def test_names_that_would_not_be_found_are_refused(which, bad, tmp_path):
    """What JSON does not give back as it was. Failed with tuples, read as lists, and NaN, which equals nothing."""
    with pytest.raises(TypeError, match=f"{which} must be strings or numbers, got "):
        fedamp_jax.save_models(tmp_path / "models", TASK, MODELS, **{which: ["b", bad, "c"]})
    assert not os.listdir(tmp_path)


def test_names_are_numbers_of_numpy(tmp_path):
    """As `Data.id` has them. Failed with "Object of type int32 is not JSON serializable"."""
    fedamp_jax.save_models(tmp_path / "models", TASK, MODELS, names=np.array([7, 8, 9], np.int32))
    saved = fedamp_jax.load_models(tmp_path / "models", TASK)
    chex.assert_trees_all_equal(saved.of(8), jax.tree.map(lambda a: a[1], MODELS))
    chex.assert_trees_all_equal(saved.of(np.int32(8)), saved.of(8))


@pytest.mark.slow
def test_another_process_predicts(tmp_path):
    """Three lines for one client. Failed when the file held a pickle of what the process had defined."""
    task = fedamp_jax.models.mlp(classes=3, hidden=(4,), shape=(2, 2))
    models = jax.vmap(task.init)(jax.random.split(jax.random.key(0), 3))
    fedamp_jax.save_models(tmp_path / "models.npz", task, models, names=NAMES)
    program = f"""
import jax.numpy as jnp, fedamp_jax
task = fedamp_jax.models.mlp(classes=3, hidden=(4,), shape=(2, 2))
model = fedamp_jax.load_models({str(tmp_path / "models.npz")!r}, task).of("Berlin")
print(task.predict(model, jnp.arange(8.0).reshape(2, 2, 2)).tolist())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    wanted = task.predict(jax.tree.map(lambda a: a[2], models), jnp.arange(8.0).reshape(2, 2, 2))
    np.testing.assert_allclose(np.array(eval(done.stdout)), wanted, rtol=1e-5)


def test_statistics_in_bfloat16(tmp_path):
    """npz knows no bfloat16. Failed with `void`, which cannot be cast back."""
    task = TASK._replace(init=lambda key: TASK.init(key)._replace(stats={"mean": jnp.ones(5, jnp.bfloat16) / 3}))
    models = jax.vmap(task.init)(jax.random.split(jax.random.key(0), 2))
    fedamp_jax.save_models(tmp_path / "models.npz", task, models)
    chex.assert_trees_all_equal(fedamp_jax.load_models(tmp_path / "models.npz", task).models, models)


def test_another_task_is_refused(tmp_path):
    """Which parameter differs. Failed when leaves of the same number of entries were reshaped."""
    path = tmp_path / "models.npz"
    fedamp_jax.save_models(path, TASK, MODELS)
    message = r"differ in params/body/bias: float32 \[4\] there, float32 \[7\] in the task"
    with pytest.raises(ValueError, match=message):
        fedamp_jax.load_models(path, tiny_task(hidden=7))
    with pytest.raises(ValueError, match=r"differ in params/body/bias: float32 \[4\] there, missing in the task"):
        fedamp_jax.load_models(path, fedamp_jax.models.from_linen(nn.Dense(3), (5,), head="bias"))
    with pytest.raises(ValueError, match="models and the task differ in params/body/bias"):
        fedamp_jax.save_models(path, tiny_task(hidden=7), MODELS)


def test_a_file_that_is_none_or_damaged_is_refused(tmp_path):
    """Cut at any place, or something else. Failed with a BadZipFile that says nothing of the file."""
    path = tmp_path / "models.npz"
    with pytest.raises(FileNotFoundError):
        fedamp_jax.load_models(path, TASK)
    fedamp_jax.save_models(path, TASK, MODELS)
    whole = path.read_bytes()
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        with pytest.raises(
            ValueError, match=r"models\.npz was not written by fedamp_jax\.save_models, or it is damaged"
        ):
            fedamp_jax.load_models(path, TASK)
    np.savez(path, a=np.ones(3))
    with pytest.raises(ValueError, match=r"was not written by fedamp_jax\.save_models"):
        fedamp_jax.load_models(path, TASK)


def test_a_later_format_is_refused(tmp_path, monkeypatch):
    """Failed with a KeyError of what the later format has in another place."""
    monkeypatch.setattr(saving, "FORMAT", 2)
    fedamp_jax.save_models(tmp_path / "models.npz", TASK, MODELS)
    monkeypatch.setattr(saving, "FORMAT", 1)
    with pytest.raises(ValueError, match="has format 2: a later version"):
        fedamp_jax.load_models(tmp_path / "models.npz", TASK)


def test_nothing_is_left_of_a_save_that_fails(tmp_path, monkeypatch):
    """The old file stays. Failed when the file itself was written to."""
    path = tmp_path / "models.npz"
    fedamp_jax.save_models(path, TASK, MODELS, names=NAMES)
    before = path.read_bytes()

    def fail(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez", fail)
    with pytest.raises(OSError, match="disk full"):
        fedamp_jax.save_models(path, TASK, MODELS)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["models.npz"]


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"names": ["a", "b"]}, ValueError, "names must be 3 different ones"),
        ({"names": ["a", "b", "a"]}, ValueError, "names must be 3 different ones"),
        ({"classes": [2, 3]}, ValueError, r"classes must be the number of classes of each of 3 clients"),
        ({"classes": [2, 3, -1]}, ValueError, r"classes must be the number .* integers from 0 on"),
        ({"classes": [2.0, 3.0, 1.0]}, ValueError, r"classes must be the number .* integers from 0 on"),
        ({"about": {"set": {1}}}, TypeError, "must hold what JSON can hold"),
        ({"models": {"w": 1}}, TypeError, "models must be of type Variables"),
        ({"models": Variables(MODELS.params, jax.tree.map(lambda a: a[:2], MODELS.stats))}, ValueError,
         r"one model for each client, .* got M = \[2, 3\]"),
    ],
)  # fmt: skip
def test_what_save_refuses(change, kind, message, tmp_path):
    """Before anything is written."""
    with pytest.raises(kind, match=message):
        fedamp_jax.save_models(**{"path": tmp_path / "models.npz", "task": TASK, "models": MODELS, **change})
    assert not os.listdir(tmp_path)


def test_others_may_read_what_is_saved(tmp_path):
    """As any file that is written, by the process's umask. Failed with a temporary file's 0600."""
    fedamp_jax.save_models(tmp_path / "models.npz", TASK, MODELS)
    (tmp_path / "other").write_text("")
    assert (tmp_path / "models.npz").stat().st_mode == (tmp_path / "other").stat().st_mode
