"""Seconds of a round over NVIDIA FLARE, for several numbers of sites on this machine and a model of a given size.

    pip install 'fedamp_jax[flare]'
    python benchmarks/silos.py --sites 4 8 --megabytes 20

The sites train one step, so that what is timed is messages: models there and back, checks, checkpoints, and the
evaluation after each round. All processes share the machine's cores.
"""

import argparse
import json
import socket
import tempfile
from pathlib import Path

from fedamp_jax.silos import flare

SETTINGS = """
import numpy as np
import optax
import fedamp_jax


def method(name):
    task = fedamp_jax.models.mlp(classes=10, shape=(784,), hidden=({hidden},))
    solver = fedamp_jax.Solver(optax.sgd(0.01), epochs=1, batch_size=16)
    own = {{"sigma": 1.0, "self_weight": 0.5}} if name == "FedAMP" else {{}}
    return task, getattr(fedamp_jax, name.lower())(task, solver, **own)


def data(site):
    rng = np.random.default_rng(int(site[4:]))
    x, y = rng.normal(size=(16, 784)).astype(np.float32), rng.integers(0, 10, 16)
    return tuple(fedamp_jax.data.from_lists([x], [y], classes=10) for _ in range(2))
"""


def timed(folder: Path, count: int, megabytes: float, methods: list[str], rounds: int) -> dict[str, float]:
    """Seconds of a round, without the first one, by method."""
    sites = [f"site{i}" for i in range(count)]
    settings = folder / "settings.py"
    settings.write_text(SETTINGS.format(hidden=round(megabytes * 1e6 / 4 / 795)))
    with socket.socket() as one:
        one.bind(("localhost", 0))
        port = one.getsockname()[1]
    described = {"name": "bench", "server": "localhost", "port": port, "admin": "admin@localhost.org"}
    (folder / "federation.yml").write_text(json.dumps(described | {"sites": dict.fromkeys(sites, "org")}))
    kits = flare.provision(folder / "federation.yml", folder / "kits")
    parties = [
        flare.start(kits / name, settings, folder / "kept" / name, log=folder / f"{name}.log")
        for name in ("localhost", *sites)
    ]
    results = {name: folder / "kept" / "localhost" / name / "result.json" for name in methods}
    try:
        job = flare.job(folder / "job", methods=methods, rounds=rounds, sites=sites)
        flare.submit(kits / "admin@localhost.org", job, lambda: all(r.exists() for r in results.values()), sites=sites,
                     say=lambda text: None)  # fmt: skip
    finally:
        flare.stop(parties)
    found = {name: json.loads(path.read_text()) for name, path in results.items()}
    return {name: (one["seconds"] - one["first_seconds"]) / (rounds - 1) for name, one in found.items()}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--megabytes", type=float, default=20.0, help="of the model")
    parser.add_argument("--methods", nargs="+", default=["FedAvg", "FedAMP"], choices=("FedAvg", "FedAMP"))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path, help="a JSON file for the numbers")
    options = parser.parse_args()
    rows = []
    for count in options.sites:
        with tempfile.TemporaryDirectory() as folder:
            for name, seconds in timed(Path(folder), count, options.megabytes, options.methods, options.rounds).items():
                rows.append({"sites": count, "megabytes": options.megabytes, "method": name, "seconds": seconds})
                print(f"{count} sites, {options.megabytes:g} MB, {name}: {seconds:.2f} s a round", flush=True)
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
