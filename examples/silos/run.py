"""Three hospitals and a server on this machine, over NVIDIA FLARE with mutual TLS: FedAMP, and FedAvg.

    pip install 'fedamp_jax[flare]'
    python examples/silos/run.py                    # about two minutes; results in silos/

In a real federation each party runs `fedamp_jax.silos.flare.start` with its own kit on its own machine (docs/silos.md).
"""

import argparse
import json
import os
import time
from pathlib import Path

import make_tables
import numpy as np

from fedamp_jax.silos import flare

HERE = Path(__file__).parent


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=["FedAMP", "FedAvg"], help="names that hospital.py knows")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--port", type=int, default=8102, help="a free one")
    parser.add_argument("--out", type=Path, default=Path("silos"))
    options = parser.parse_args()
    out, sites = options.out.absolute(), list(make_tables.SITES)
    if (out / "kept").exists():
        parser.error(f"{out} holds an earlier run, which would be continued: give another --out, or remove it")
    make_tables.write(out / "tables")
    os.environ["HOSPITAL_TABLES"] = str(out / "tables")
    federation = {"name": "hospitals", "server": "localhost", "port": options.port, "admin": "admin@localhost.org"}
    (out / "federation.json").write_text(json.dumps(federation | {"sites": dict.fromkeys(sites, "hospital")}))
    kits = flare.provision(out / "federation.json", out / "kits")  # JSON is YAML, too
    parties = [
        flare.start(kits / name, HERE / "hospital.py", out / "kept" / name, log=out / f"{name}.log")
        for name in ("localhost", *sites)
    ]
    results = [out / "kept" / "localhost" / name / "result.json" for name in options.methods]
    try:
        began = time.perf_counter()
        job = flare.job(out / "job", methods=options.methods, rounds=options.rounds, sites=sites)
        flare.submit(kits / "admin@localhost.org", job, lambda: all(r.exists() for r in results), sites=sites)
        print(f"{len(results)} methods in {time.perf_counter() - began:.0f} s")
    finally:
        flare.stop(parties)
    for name, path in zip(options.methods, results):
        found = json.loads(path.read_text())
        last = 100 * np.array(found["metrics"]["accuracy"][-1])
        each = ", ".join(f"{site} {value:.1f}" for site, value in zip(found["sites"], last))
        print(f"{name:<11} {last.mean():5.1f} % of each hospital's test patients ({each}), {found['seconds']:.1f} s")


if __name__ == "__main__":
    main()
