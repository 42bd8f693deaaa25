"""Everything that decides the `gpu` column of `platforms.py`, on the GPU that is here, within nine minutes.

python benchmarks/gpu.py --out FOLDER             # measure; what is in the folder already is not measured again
python benchmarks/gpu.py --out FOLDER --apply     # the same, then the change to platforms.py
python benchmarks/gpu.py --out FOLDER --compile   # without a GPU: what an H100's compiler says of the candidates

Takes jax for the GPU, flax, optax, scikit-learn, orbax-checkpoint and rich; PyTorch if it is there. Every part runs in
a process of its own with a time limit; one that hangs or crashes is started again without the job that it was at.
`FOLDER/results.jsonl` gets a line as soon as something is known, `FOLDER/gpu.json` all of them with the decision.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch needs memory on the same card

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the package that this script belongs to, whether or not it is installed

# XLA's: which commands are launched as CUDA graphs (whole loops among them), and whether their kernels may overlap.
_GRAPHS = {
    "none": "--xla_gpu_enable_command_buffer=",
    "loops": "--xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,"
    "CONDITIONAL,WHILE",
    "concurrent": "--xla_gpu_command_buffer_scheduling_mode=CONCURRENT",
}


class Part(NamedTuple):
    """Attributes: seconds: it may take. limit: of one job. flags: of XLA."""

    seconds: float
    limit: float
    flags: str = ""


# In this order; what one leaves goes to a second turn of all.
PARTS = {
    "peaks": Part(25, 20),
    "rounds mnist-cnn": Part(85, 60),
    "rounds cifar100-resnet18": Part(95, 90),
    "rounds mnist-mlp": Part(30, 25),
    "rounds digits-mlp": Part(25, 20),
    "server": Part(35, 20),
    "whole": Part(85, 70),
    "torch": Part(60, 45),
    **{f"graphs {name}": Part(25, 40, flags) for name, flags in _GRAPHS.items()},
}


def jobs(part: str, settings: Any) -> Any:
    """The jobs of a part, whose module is imported here: it imports jax."""
    from on_gpu import compiled, graphs, peaks, race, rounds, server, whole

    kind, _, model = part.partition(" ")
    if kind in ("rounds", "compiled"):
        return {"rounds": rounds, "compiled": compiled}[kind].jobs(settings, model)
    return {"peaks": peaks, "server": server, "whole": whole, "torch": race, "graphs": graphs}[kind].jobs(settings)


def environment(part: Part, args: argparse.Namespace) -> dict[str, str]:
    """Of a part's process."""
    new = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    if part.flags:
        new["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {part.flags}".strip()
    if args.compile:
        new["JAX_PLATFORMS"] = "cpu"
    elif not args.tiny:
        new.setdefault("JAX_COMPILATION_CACHE_DIR", str(args.out / "compiled"))  # with it, what autotuning found
    return new


def run(name: str, part: Part, until: float, args: argparse.Namespace) -> None:
    """A part in processes of its own, until all of its jobs have begun or its time is over."""
    from on_gpu.record import Results

    results = Results(args.out / "results.jsonl")
    command = [sys.executable, __file__, "--out", str(args.out), "--part", name, "--until", str(until)]
    command += ["--tiny"] if args.tiny else []
    while time.time() < until - 1:
        before = results.states(name)
        log = (args.out / "log.txt").open("a")
        with log, subprocess.Popen(
            command, env=environment(part, args), stdout=log, stderr=log, start_new_session=True
        ) as process:  # fmt: skip
            why = watch(process, name, part.limit, until, results)
        for job in [job for job, state in results.states(name).items() if state == "begun"]:
            results.add(name, job, **(why or {"failed": f"the process ended with {process.returncode}"}))
        if process.returncode == 0:
            break
        if results.states(name) == before:
            results.add(name, "start", failed=f"the process ended with {process.returncode} before its first job")
            break


def watch(process: subprocess.Popen, name: str, limit: float, until: float, results: Any) -> dict[str, str]:
    """Waits for a process; ends it and says why when it is over the time, of one job or of the part.

    A job that ran into the end of its part has not failed: it may have another turn.
    """
    while process.poll() is None:
        time.sleep(0.1)
        lines = [line for line in results.lines() if line["part"] == name]
        now = time.time()
        late = bool(lines) and "begun" in lines[-1] and now - lines[-1]["time"] > limit
        if late or now > until + 5:
            os.killpg(process.pid, signal.SIGKILL)  # its own session: PyTorch's process goes with it
            process.wait()
            return {"failed": f"ended after {limit:.0f} s"} if late else {"skipped": "its part was over"}
    return {}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder of the results")
    parser.add_argument("--minutes", type=float, default=9.0, help="for everything")
    parser.add_argument("--apply", action="store_true", help="print the change to platforms.py")
    parser.add_argument("--compile", action="store_true", help="compile for an H100 only, which need not be here")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal: sizes for a CPU, whose numbers say nothing")
    parser.add_argument("--only", nargs="*", help=f"parts, of: {', '.join(PARTS)}")
    for hidden in ("--part", "--until", "--torch"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.torch:
        from on_gpu.race import serve

        return serve(args.torch, args.tiny)
    if args.out is None:
        parser.error("--out FOLDER: where the results go")
    args.out = args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.part:
        from on_gpu.record import Results, Settings, work

        settings = Settings(Results(args.out / "results.jsonl"), float(args.until), args.tiny)
        return work(args.part, jobs(args.part, settings), settings)
    measure(args)


def measure(args: argparse.Namespace) -> None:
    """All parts in two turns, then the tables and the decision."""
    from on_gpu import report

    end = time.time() + 60 * args.minutes
    parts = PARTS
    if args.compile:
        from on_gpu.cases import CASES

        parts = {f"compiled {name}": Part(86_400, 3600) for name in CASES}
        end = time.time() + 86_400
    if args.tiny:  # on a busy machine it may take long, and has to come to its end
        parts = {name: part._replace(seconds=600.0, limit=600.0) for name, part in parts.items()}
        end = time.time() + 3600
    parts = {name: part for name, part in parts.items() if args.only is None or name in args.only}
    for turn in (0, 1):
        # Of rounds there is always one more to try, so what else is left goes first.
        for name, part in sorted(parts.items(), key=lambda item: turn and item[0].startswith("rounds")):
            # The last seconds are for the report. A part may take more than its share in the second turn.
            until = min(time.time() + part.seconds, end - 5) if turn == 0 else end - 5
            if until - time.time() > 3:
                print(f"{name}: {until - time.time():.0f} s at most", flush=True)
                run(name, part, until, args)
            report.write(args.out)
        if args.tiny or args.compile:
            break
    report.show(args.out, apply=args.apply)
    print(f"Written: {args.out / 'gpu.json'}")


if __name__ == "__main__":
    main()
