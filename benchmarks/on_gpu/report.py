"""What was found: a table for each part, all of it as one JSON file, and the `gpu` column that follows."""

import json
import os
from pathlib import Path
from typing import Any

import bench

from on_gpu.decide import change, decide
from on_gpu.record import Results

COLUMNS = {
    "rounds": ("round", "server", "us_per_client_step", "kernels", "tb", "gib", "peak_gib", "compiling"),
    "graphs": ("round", "us_per_client_step", "kernels", "compiling"),
    "compiled": ("kernels", "tb", "least", "gib", "compiling"),
    "peaks": ("seconds", "gbs", "tflops", "us_per_kernel"),
    "server": ("seconds", "error", "error_of_nearest", "gbs"),
    "whole": ("round", "clients_trained", "compiling", "peak_gib", "from_cpu_float32", "from_cpu_default",
              "same_bits_float32", "same_bits_default"),
}  # fmt: skip


def head(results: Results) -> dict[str, Any]:
    """The machine, as the first part wrote it."""
    return next((row for row in results.rows("peaks") if row["name"] == "machine"), {})


def write(out: Path) -> None:
    """`gpu.json`, replaced in one go, so that there always is a whole one."""
    results = Results(out / "results.jsonl")
    decision, lines = decide(results), [line for line in results.lines() if "begun" not in line]
    found = {
        "machine": head(results), "rows": [line for line in lines if "seconds_taken" in line],
        "without": [line for line in lines if "seconds_taken" not in line],
        "column": decision.choices._asdict(), "reasons": decision.reasons, "notes": decision.notes,
    }  # fmt: skip
    new = out / "gpu.json.new"
    new.write_text(json.dumps(found, indent=1, default=str) + "\n")
    os.replace(new, out / "gpu.json")


def show(out: Path, *, apply: bool) -> None:
    """Tables of what was measured, what was not, the decision, and with `apply` the change to `platforms.py`."""
    results = Results(out / "results.jsonl")
    for kind, columns in COLUMNS.items():
        rows = results.rows(kind)
        if rows:
            shown = [{"part": row["part"], "": row["name"], **{c: row.get(c) for c in columns}} for row in rows]
            bench.show(kind, shown)
    for row in results.rows("torch"):
        steps = [{"contestant": name, "microseconds": us} for name, us in row["us_per_client_step"].items()]
        failures = [f"{name}: {why}" for name, why in row.get("failures", {}).items()]
        bench.show(f"A client's step, {row['name']}", steps, failures)
    for part in sorted({line["part"] for line in results.lines()}):
        states = results.states(part)
        skipped = sum(state == "skipped" for state in states.values())
        failed = [name for name, state in states.items() if state == "failed"]
        if skipped or failed:
            print(f"{part}: no time for {skipped}; failed: {', '.join(failed) or 'none'} (see results.jsonl)")
    decision = decide(results)
    print(f"\ngpu column: {decision.choices}")
    for field, why in decision.reasons.items():
        print(f"  {field}: {why}")
    for note in decision.notes:
        print(f"  {note}")
    if apply:
        print(change(decision, head(results)))
