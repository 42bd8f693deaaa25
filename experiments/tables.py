"""The papers' tables from result files: ours beside theirs, and the page of results.

    python experiments/tables.py RESULTS...                                # print
    python experiments/tables.py --write docs/results.md RESULTS...        # write the page and its figures
    python experiments/tables.py --slim docs/measurements RESULTS...       # keep small copies of result files

RESULTS are results.json files, or the folders that an experiment wrote. A cell without a measurement is "-". Where
several runs measured the same cell, the one nearest to the paper counts. Every model has a column of its own.
"""

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import ablation
import command_line
import convergence
import faulty
import outputs
import settings
import tyro
from matplotlib.figure import Figure
from paper_tables import TITLES, fedamp_table, number, pflego_tables, spread, table
from records import Record, Row, in_tables, read, rows, slim

from fedamp_jax import metrics, plotting


@dataclasses.dataclass
class Options:
    """What to do with which result files."""

    results: tyro.conf.Positional[tuple[str, ...]]
    """results.json files, or folders with one."""
    write: str | None = None
    """Write the page to this file, and its figures beside it into figures/."""
    slim: str | None = None
    """Write small copies of the files into this folder, and nothing else."""
    note: Annotated[str | None, tyro.conf.arg(metavar="TEXT")] = None
    """With --slim: what a reader should know of these runs."""


def other_runs(measured: Sequence[Row]) -> list[str]:
    """Runs with dropped clients, partial participation, random epochs or another local step: BMTA by setting."""
    out = ["## Dropped clients, participation, other local steps (FedAMP paper, Figs. 5 to 9; PFLEGO paper, Fig. 6)"]
    groups: dict[str, list[Row]] = {}
    for row in measured:
        groups.setdefault(row.record.name, []).append(row)
    # All of a run, once one of its parts is unlike the tables' runs; an ablation has a table of its own.
    groups = {k: g for k, g in groups.items() if not all(map(in_tables, g)) and g[0].run["experiment"] != "ablation"}
    for name, group in groups.items():
        columns = dict.fromkeys(_conditions(row.run["settings"]) for row in group)
        found = {(row.method, _conditions(row.run["settings"])): row for row in group}
        body = []
        for method in dict.fromkeys(row.method for row in group):
            cells = [found.get((method, column)) for column in columns]
            body.append(
                [method, *(spread(row.entry["bmta"], row.entry.get("bmta_std")) if row else "-" for row in cells)]
            )
        dataset = TITLES[group[0].run["dataset"]]
        out += [f"{dataset}, {group[0].run['experiment']}, BMTA in percent, run `{name}`:"]
        out.append(table(["method", *columns], body))
    return out if groups else [*out, "-"]


def _conditions(own: dict[str, Any]) -> str:
    """What sets a run of these settings apart from those of the tables, in words."""
    words = [settings.DEGREES[own["degree"]]] if own.get("degree") else []
    words += [f"{outputs.percent(own['participation'])} invited"] * (own["participation"] != 1 or bool(words))
    words += [f"{outputs.percent(own['drop_rate'])} dropped"] * bool(own["drop_rate"])
    if own.get("epochs_range"):
        words.append("{} to {} epochs".format(*own["epochs_range"]))
    steps = {**settings.LOCAL_STEPS, **settings.PFLEGO_STEPS}
    words += [f"{name} {own[name]}" for name, usual in steps.items() if own.get(name, usual) != usual]
    return ", ".join(words) or "everybody"


def theorems(record: Record) -> list[str]:
    """Measured gaps beside the bounds of Theorems 1 and 2."""
    out = [f"## FedAMP paper, Theorems 1 and 2 (run `{record.name}`)"]
    for key, word in (("theorem1", "min G - G*"), ("theorem2", "min of the squared gradient norm")):
        rows_of = record.content[key]
        held = all(gap <= bound for gap, bound in zip(rows_of["gap"], rows_of["bound"], strict=True))
        verdict = "holds for every K" if held else "DOES NOT HOLD"
        slope = f"slope of log {word} over log K: {rows_of['slope']:.2f}, promised: -0.5"
        text = f"Theorem {key[-1]}: the bound {verdict}; {slope}."
        lines = zip(*(rows_of[name] for name in ("K", "gap", "bound", "B", "gap_eq5")), strict=True)
        body = [[str(k), *(f"{value:.3g}" for value in values)] for k, *values in lines]
        out += [text, table(["K", word, "bound", "B", "with Eq. 5 as printed"], body)]
    return out


def faulty_clients(record: Record) -> list[str]:
    """What becomes of the honest, for every attack at the largest share of faulty clients."""
    content = record.content
    own = content["settings"]
    share = outputs.percent(max(own["shares"]))
    body = []
    for name, method in content["methods"].items():
        cells = [number(method["clean"])]
        for attack in own["attacks"]:
            row = method["attacks"][attack]
            given = (row["weight_to_faulty"] or [None])[-1]
            cells.append(number(row["accuracy"][-1]) + ("" if given is None else f" ({100 * given:.1f})"))
        body.append([name, *cells])
    head = ["method", "nobody faulty", *(faulty.ATTACKS[attack] for attack in own["attacks"])]
    text = (
        f"{TITLES[content['dataset']]}: accuracy in percent of the clients that stay honest while {share} of all send "
        "what the column says; in brackets, how many percent of the weight that they give away the faulty get."
    )
    return [f"## Faulty clients (run `{record.name}`)", text, table(head, body)]


def decisions(record: Record) -> list[str]:
    """FedAMP with one decision changed at a time: accuracy, and how far attention has found the groups in the end."""
    content = record.content
    methods = content["methods"]
    base = methods.get("base")
    body = []
    for name, method in methods.items():
        known = base is not None and name != "base"
        gap = f"{method['bmta'] - base['bmta']:+.2f}" if known else "-"
        p = number(metrics.wilcoxon(method["accuracy"], base["accuracy"]), ".2g") if known else "-"
        found = [number((method.get(key) or [None])[-1]) for key in ("in_group_weight", "ari")]
        body.append([name, ablation.VARIANTS[name].text, number(method["bmta"]), gap, p, *found])
    own = content["settings"]
    run = f"{own['model']}, {content['rounds']} rounds, sigma {own['sigma']:g}, {_conditions(own)}"
    text = (
        f"{TITLES[content['dataset']]}, {run}. BMTA in percent, its difference to `base` and Wilcoxon's p of the last "
        "round; of the last round, too, the weight that clients give to others of their group and the adjusted Rand "
        "index of the groups found from xi."
    )
    head = ["variant", "what is changed", "BMTA", "difference", "p", "in-group weight", "ARI"]
    return [f"## What FedAMP's open decisions are worth (run `{record.name}`)", text, table(head, body)]


def runs(records: Sequence[Record], measured: Sequence[Row]) -> list[str]:
    """Of every record: command, device, versions, and rounds and seconds of each row."""
    out = ["## Runs"]
    for record in records:
        content = record.content
        version = ", ".join(f"{name} {value}" for name, value in content["versions"].items())
        out.append(f"### {record.name}")
        note = f"\n\nNote: {content['note']}." if content.get("note") else ""
        out.append(f"`{whole_command(content)}`\n\n{content['device']}; {version}; {content['created']}{note}")
        mine = [row for row in measured if row.record is record]
        if mine:
            head = ["method", "setting", "rounds", "best round", "seconds", "s / round", "clients rejected"]
            out.append(table(head, [_run_line(row) for row in mine]))
    return out


def whole_command(content: dict[str, Any]) -> str:
    """The command that makes all that a result file holds, which several commands with --resume may have made."""
    # The last of a command's --methods counts, and is left out with all its values.
    words, of_methods = [], False
    for word in shlex.split(content["command"]):
        if word.startswith("--"):
            of_methods = word.split("=")[0] == "--methods"
        if not of_methods and word not in ("--resume", "--no-resume"):
            words.append(word)
    part = next(iter(content.get("parts", {"": content}).values()))
    held = tuple(part.get("methods", ()))
    pflego = {"degrees": settings.PFLEGO_METHODS, "omniglot": settings.OMNIGLOT_METHODS}
    every = {**pflego, "ablation": tuple(ablation.VARIANTS)}.get(content["experiment"], settings.METHODS)
    if held and set(held) != set(every):
        words += ["--methods", *(["paper"] if held == settings.PAPER_METHODS else held)]
    return shlex.join(words)


def _run_line(row: Row) -> list[str]:
    entry = row.entry
    time = [number(entry["seconds"], ".1f"), number(entry.get("seconds_per_round"), ".3g")]
    rejected = str(len(entry.get("rejected") or {}))
    setting = _conditions(row.run["settings"])
    return [row.method, setting, str(row.run["rounds"]), str(entry["best_round"]), *time, rejected]


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    """Every record's: panels of several settings; of one run convergence, and xi where the file has it."""
    drawn: dict[str, Figure] = {}
    for record in records:
        content = record.content
        if content["experiment"] == "convergence":
            drawn[record.name] = convergence.draw(content)
        elif content["experiment"] == "faulty":
            drawn[record.name] = faulty.draw(content)
        elif "parts" in content:
            drawn[record.name] = plotting.panels(content)
        else:
            drawn[record.name] = plotting.convergence(content)
            weights = plotting.xi_heatmap(content)
            drawn |= {f"{record.name}-xi": weights} if weights else {}
    return drawn


def page(records: Sequence[Record], command: str, images: Sequence[str] = ()) -> str:
    """All tables in Markdown."""
    measured = list(rows(records))
    out = ["# Results", f"Made from result files by `{command}`; no number here was typed by hand."]
    for setting in ("iid", "pathological", "practical"):
        out += fedamp_table(setting, measured)
    out += other_runs(measured) + pflego_tables(measured)
    for record in records:
        if record.content["experiment"] == "convergence":
            out += theorems(record)
        elif record.content["experiment"] == "faulty":
            out += faulty_clients(record)
        elif record.content["experiment"] == "ablation":
            out += decisions(record)
    if images:
        out += ["## Figures", *(f"![{Path(image).stem}]({image})" for image in images)]
    return "\n\n".join([*out, *runs(records, measured)]) + "\n"


def execute(options: Options) -> None:
    """Print, write or slim."""
    records = read(options.results)
    names = [record.name for record in records]
    if len(set(names)) < len(names):
        raise ValueError(f"result files must have different names, or lie in folders with different names; got {names}")
    if options.slim is not None:
        for record in records:
            outputs.console.print(str(slim(record, Path(options.slim), options.note)), highlight=False, soft_wrap=True)
        return
    command = shlex.join(["python", "experiments/tables.py"])
    if options.write is None:
        print(page(records, f"{command} RESULTS..."))
        return
    path = Path(options.write)
    command = shlex.join(["python", "experiments/tables.py", "--write", options.write, *options.results])
    images = []
    for name, figure in figures(records).items():
        images.append(f"figures/{plotting.save(figure, path.parent / 'figures' / f'{name}.png', dpi=110).name}")
    plotting.replace(path, page(records, command, images).encode())
    outputs.console.print(str(path), highlight=False, soft_wrap=True)


def main() -> None:
    """Run from the command line."""
    options = tyro.cli(Options, description=__doc__)
    with command_line.errors_for_people():
        execute(options)


if __name__ == "__main__":
    main()
