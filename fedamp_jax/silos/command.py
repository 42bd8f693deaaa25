"""`fedamp silos`: try a federation on one machine, or run one over NVIDIA FLARE."""

import argparse
import json
import time
from pathlib import Path

import fedamp_jax
from fedamp_jax.runner.messages import say
from fedamp_jax.silos.federation import InProcess, deliver
from fedamp_jax.silos.sent import traffic
from fedamp_jax.silos.site import Settings

_ADVICE = "needs NVIDIA FLARE: pip install 'fedamp_jax[flare]'"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    here = commands.add_parser("in-process", help="all sites in this process, to try settings and methods")
    here.add_argument("settings", type=Path, help="a Python file with method(name) and data(site)")
    here.add_argument("--sites", nargs="+", required=True, help="names that data(site) knows")
    here.add_argument("--methods", nargs="+", required=True, help="names that method(name) knows")
    here.add_argument("--rounds", type=int, default=20)
    here.add_argument("--seed", type=int, default=0)
    here.add_argument("--out", type=Path, help="a folder for what the sites keep; without it, nothing is kept")
    kits = commands.add_parser("provision", help="start kits for all parties, from one YAML file")
    kits.add_argument("federation", type=Path, help="name, server, port, admin, sites")
    kits.add_argument("--out", type=Path, default=Path("kits"))
    start = commands.add_parser("start", help="the server or a site, until it is stopped")
    start.add_argument("kit", type=Path)
    start.add_argument("--settings", type=Path, required=True)
    start.add_argument("--folder", type=Path, required=True, help="for what must survive: state, models, checkpoints")
    submit = commands.add_parser("submit", help="run methods; again, if a job ends before they are finished")
    submit.add_argument("admin", type=Path, help="the admin's kit")
    submit.add_argument("--sites", nargs="+", required=True, help="all of them, in the order of the clients")
    submit.add_argument("--methods", nargs="+", required=True)
    submit.add_argument("--rounds", type=int, default=20)
    submit.add_argument("--seed", type=int, default=0)
    submit.add_argument("--deadline", type=float, default=300.0, help="seconds that a site has for an answer")
    submit.add_argument("--bfloat16", action="store_true", help="send models in half of the bytes")
    submit.add_argument("--folder", type=Path, required=True, help="the server's, where its results will be")
    options = parser.parse_args()
    {"in-process": _in_process, "provision": _provision, "start": _start, "submit": _submit}[options.command](options)


def _in_process(options: argparse.Namespace) -> None:
    settings = Settings(options.settings)
    for name in options.methods:
        folders = [None if options.out is None else options.out / site / name for site in options.sites]
        silos = [settings.silo(site, name, folder) for site, folder in zip(options.sites, folders, strict=True)]
        there, (task, algorithm), began = InProcess(silos), settings.method(name), time.perf_counter()
        train, test = there.connect(seed=options.seed)
        result = fedamp_jax.run(
            task, algorithm, train, test, rounds=options.rounds, seed=options.seed, progress=f"{name:<11}"
        )
        deliver(algorithm, result, train)
        last = dict(zip(options.sites, next(iter(result.metrics.values()))[-1], strict=True))
        each = ", ".join(f"{site} {100 * value:.1f}" for site, value in last.items())
        say(f"{name:<11} {each} ({time.perf_counter() - began:.1f} s)")
        say(f"{'':<11} {traffic(algorithm, train)}")


def _provision(options: argparse.Namespace) -> None:
    say(f"the start kits are in {_flare().provision(options.federation, options.out)}: give each party its own")


def _start(options: argparse.Namespace) -> None:
    flare = _flare()
    process = flare.start(options.kit, options.settings, options.folder)
    try:
        process.wait()
    finally:
        flare.stop([process])


def _submit(options: argparse.Namespace) -> None:
    flare = _flare()
    results = [options.folder / name / "result.json" for name in options.methods]
    job = flare.job(
        options.folder / "job", methods=options.methods, rounds=options.rounds, sites=options.sites, seed=options.seed,
        deadline=options.deadline, dtype="bfloat16" if options.bfloat16 else None,
    )  # fmt: skip
    flare.submit(options.admin, job, lambda: all(path.exists() for path in results), sites=options.sites, say=say)
    for name, path in zip(options.methods, results, strict=True):
        found = json.loads(path.read_text())
        metric, values = next(iter(found["metrics"].items()))
        each = ", ".join(f"{site} {value:.3f}" for site, value in zip(found["sites"], values[-1], strict=True))
        say(f"{name}: {metric} after {found['rounds'][-1]} rounds: {each}")


def _flare():
    try:
        from fedamp_jax.silos import flare
    except ImportError as error:
        raise SystemExit(f"fedamp silos {_ADVICE} ({error})") from None
    return flare
