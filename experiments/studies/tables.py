"""The papers' tables from result files: our values beside the paper's, and the page of results.

    cd experiments/studies
    python tables.py RESULTS...                      # print
    python tables.py --write RUNS.md RESULTS...      # write the page and its figures
    python tables.py --slim results RESULTS...       # keep small copies of result files

RESULTS are results.json files, or folders that an experiment wrote. A table of the papers to which none of them belongs
is left out; a cell without a measurement is "-". If several runs measured the same cell, the one closest to the paper's
settings is shown. Every model has a column of its own.
"""

import dataclasses
import itertools
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import ablation
import convergence
import faulty
import leads
import tyro
from matplotlib.figure import Figure
from paper_tables import TITLES, fedamp_table, number, pflego_degrees, pflego_omniglot, spread, table
from result_types import KINDS, ConvergenceResults, FaultyResults, is_convergence, is_faulty
from rows import in_tables, rows, slim

from fedamp_jax import analysis
from fedamp_jax.algorithms.registry import BY_NAME, METHODS, PAPER_METHODS
from fedamp_jax.data.federations import clients_of
from fedamp_jax.experiments import paper_values
from fedamp_jax.experiments.concept import Concept
from fedamp_jax.files import local_path
from fedamp_jax.report import figures, files
from fedamp_jax.report.files import Record, Row, methods_in, read, single_runs
from fedamp_jax.report.schema import GridResults, Results, RunResults, is_grid
from fedamp_jax.report.sweeps import sweeps
from fedamp_jax.runner import command_line, messages

_ADDED = (
    ("FedProto", "kNN-Per", "FedALA", "FedPAC", "pFedHN"),
    ("LG-FedAvg", "FedRoD", "Per-FedAvg"),
    ("IFCA", "CFL"),
    ("pFedMe", "FedFomo", "pFedGraph"),
)  # methods that older files do not have, the last added first


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of the command."""

    results: tyro.conf.Positional[tuple[str, ...]]
    """results.json files, or folders that hold one."""
    write: str | None = None
    """Write the page to this file, and its figures to figures/ beside it."""
    slim: str | None = None
    """Only write small copies of the files into this folder."""
    note: Annotated[str | None, tyro.conf.arg(metavar="TEXT")] = None
    """With --slim: a note about these runs, to be shown on the page."""


def other_runs(measured: Sequence[Row]) -> list[str]:
    """BMTA by setting of runs with settings that the papers' tables do not have; nothing without such runs."""
    groups: dict[str, list[Row]] = {}
    for row in measured:
        groups.setdefault(row.record.name, []).append(row)
    # All parts of a run, if one of them is not in the papers' tables; some experiments have their own table.
    own = ("ablation", "leads")
    groups = {k: g for k, g in groups.items() if not all(map(in_tables, g)) and g[0].head["experiment"] not in own}
    figures_of = "FedAMP paper, Figs. 5 to 9; PFLEGO paper, Fig. 6"
    title = f"Dropped clients, participation, a narrow model, other local training ({figures_of})"
    out = [f"## {title}"] if groups else []
    for name, group in groups.items():
        columns = dict.fromkeys(_conditions(row.settings) for row in group)
        found = {(row.method, _conditions(row.settings)): row for row in group}
        body = []
        for method in dict.fromkeys(row.method for row in group):
            cells = [found.get((method, column)) for column in columns]
            body.append(
                [method, *(spread(row.entry["bmta"], row.entry.get("bmta_std")) if row else "-" for row in cells)]
            )
        dataset = TITLES[group[0].head["dataset"]]
        out += [f"{dataset}, {group[0].head['experiment']}, BMTA in percent, run `{name}`:"]
        out.append(table(["method", *columns], body))
    return out


def _conditions(own: Mapping[str, Any]) -> str:
    """How these settings differ from those of the papers' tables, as text."""
    degree, share = own.get("degree"), own["participation"]
    invited = f"{messages.percent(share)} invited" if share != 1 or degree else None
    width = own.get("width", paper_values.WIDTH)
    words = [
        degree and paper_values.DEGREES[degree],
        invited,
        *(f"{name} {own[name]}" for name in ("setting", "split", "alpha") if own.get(name)),
        own.get("clients") not in (None, clients_of(own.get("dataset", ""))) and f"{own['clients']} clients",
        own.get("balanced") and "balanced",
        own.get("shift") and f"{own['shift']}, strength {own['strength']:g}",
        own.get("groups") not in (None, Concept.groups) and f"{own['groups']} groups",
        own.get("quick") and "--quick",
        own.get("labels", "own") != "own" and f"{own['labels']} labels",
        own.get("rotations") not in (None, "none", "train") and f"rotations {own['rotations']}",
        own.get("train_share", 1) != 1 and f"{messages.percent(own['train_share'])} of the examples",
        own.get("validation_fraction") and "validation data",
        own.get("holdout_clients") and f"{own['holdout_clients']} clients held out",
        own.get("lead"),
        width != paper_values.WIDTH and f"{own['model']} of width {width}",
        own["drop_rate"] and f"{messages.percent(own['drop_rate'])} dropped",
        own.get("epochs_range") and "{} to {} epochs".format(*own["epochs_range"]),
    ]
    steps = {**paper_values.LOCAL_STEPS, **paper_values.PFLEGO_STEPS}
    words += [f"{name} {own[name]}" for name, value in steps.items() if own.get(name, value) != value]
    return ", ".join(word for word in words if word) or "all clients"


def theorems(name: str, content: ConvergenceResults) -> list[str]:
    """Measured gaps and bounds of Theorems 1 and 2."""
    out = [f"## FedAMP paper, Theorems 1 and 2 (run `{name}`)"]
    words = ("min G - G*", "min of the squared gradient norm")
    for number_of, word, rows_of in zip((1, 2), words, (content["theorem1"], content["theorem2"]), strict=True):
        held = all(gap <= bound for gap, bound in zip(rows_of["gap"], rows_of["bound"], strict=True))
        verdict = "holds for every K" if held else "DOES NOT HOLD"
        slope = f"slope of log {word} over log K: {rows_of['slope']:.2f}, promised: at most -0.5"
        text = f"Theorem {number_of}: the bound {verdict}; {slope}."
        lines = zip(rows_of["K"], rows_of["gap"], rows_of["bound"], rows_of["B"], rows_of["gap_eq5"], strict=True)
        body = [[str(k), *(f"{value:.3g}" for value in values)] for k, *values in lines]
        out += [text, table(["K", word, "bound", "B", "with Eq. 5 as printed"], body)]
    return out


def faulty_clients(run: str, content: FaultyResults) -> list[str]:
    """Accuracy of the honest clients for every attack, at the largest share of faulty clients."""
    own = content["settings"]
    share = messages.percent(max(own["shares"]))
    body = []
    for name, method in content["methods"].items():
        cells = [number(method["clean"])]
        for attack in own["attacks"]:
            row = method["attacks"][attack]
            given = (row["weight_to_faulty"] or [None])[-1]
            cells.append(number(row["accuracy"][-1]) + ("" if given is None else f" ({100 * given:.1f})"))
        body.append([name, *cells])
    head = ["method", "none faulty", *(faulty.ATTACKS[attack] for attack in own["attacks"])]
    text = (
        f"{TITLES[content['dataset']]}: accuracy of the honest clients in percent, while {share} of all clients send "
        "what the column says; in brackets, the percentage of the weight given to others that faulty clients get."
    )
    return [f"## Faulty clients (run `{run}`)", text, table(head, body)]


def decisions(run: str, content: RunResults) -> list[str]:
    """FedAMP with one decision changed at a time: accuracy, and how well attention finds the groups."""
    methods = content["methods"]
    base = methods.get("base")
    body = []
    for name, method in methods.items():
        gap, p = "-", "-"
        if base is not None and name != "base":
            gap = f"{method['bmta'] - base['bmta']:+.2f}"
            p = number(analysis.wilcoxon(method["accuracy"], base["accuracy"]), ".2g")
        found = [number((method.get(key) or [None])[-1]) for key in ("in_group_weight", "ari")]
        body.append([name, ablation.VARIANTS[name].text, number(method["bmta"]), gap, p, *found])
    own = content["settings"]
    setting = f"{own['model']}, {content['rounds']} rounds, sigma {own['sigma']:g}, {_conditions(own)}"
    text = (
        f"{TITLES[content['dataset']]}, {setting}. BMTA in percent and its difference from `base`; for the last round, "
        "Wilcoxon's p, the weight that clients give to others of their group, and the adjusted Rand index of the "
        "groups found from xi."
    )
    head = ["variant", "what is changed", "BMTA", "difference", "p", "in-group weight", "ARI"]
    return [f"## FedAMP's design decisions (run `{run}`)", text, table(head, body)]


def lead_table(run: str, content: RunResults | GridResults) -> list[str]:
    """The practical setting with one thing changed at a time: accuracy of every method."""
    parts = single_runs(content)
    names = [name for name in leads.METHODS if any(name in part["methods"] for part in parts)]
    body, paper = [], {}
    for part in parts:
        lead, methods = str(part["settings"]["lead"]), part["methods"]
        found = [methods.get(name) for name in names]
        cells = [spread(entry["bmta"], entry.get("bmta_std")) if entry else "-" for entry in found]
        body.append([lead, "; ".join(leads.LEADS[one].text for one in lead.split("+")), *cells])
        paper |= {name: entry["paper"] for name, entry in methods.items()}
    if any(paper.values()):  # digits are not in it
        body.append(["*the paper*", "", *(number(paper[name]) for name in names)])
    text = (
        f"{TITLES[content['dataset']]}, {parts[0]['settings']['model']}, {content['rounds']} rounds; BMTA in percent."
    )
    head = ["lead", "what is changed", *names]
    return [f"## The practical setting with one change (run `{run}`)", text, table(head, body)]


def runs(records: Sequence[Record], measured: Sequence[Row]) -> list[str]:
    """The command, device and versions of every record, and rounds and seconds of its rows."""
    out = ["## Runs"]
    for record in records:
        content = record.content
        version = ", ".join(f"{name} {value}" for name, value in content["versions"].items())
        out.append(f"### {record.name}")
        note = f"\n\nNote: {content.get('note')}." if content.get("note") else ""
        out.append(f"`{whole_command(content)}`\n\n{content['device']}; {version}; {content['created']}{note}")
        mine = [row for row in measured if row.record is record]
        if mine:
            head = ["method", "setting", "rounds", "best round", "seconds", "s / round", "clients rejected"]
            out.append(table(head, [_run_line(row) for row in mine]))
    return out


def whole_command(content: Results) -> str:
    """One command that gives all that a result file holds, even if it took several commands with --resume."""
    # Leaves out --methods and its values, as they may be of the last command only.
    words, of_methods = [], False
    for word in shlex.split(content["command"]):
        if word.startswith("--"):
            of_methods = word.split("=")[0] == "--methods"
        if not of_methods and word not in ("--resume", "--no-resume"):
            words.append(word)
    held = () if is_convergence(content) else tuple(methods_in(content))
    pflego = {"degrees": paper_values.PFLEGO_METHODS, "omniglot": paper_values.OMNIGLOT_METHODS}
    every = {**pflego, "ablation": tuple(ablation.VARIANTS), "leads": leads.METHODS}.get(
        content["experiment"], tuple(name for name in METHODS if name not in BY_NAME)
    )
    # A file may be older than the methods that were added since.
    ages = itertools.accumulate(_ADDED, lambda methods, added: methods - set(added), initial=set(every))
    if held and set(held) not in ages:
        words += ["--methods", *(["paper"] if held == PAPER_METHODS else held)]
    return shlex.join(words)


def _run_line(row: Row) -> list[str]:
    entry = row.entry
    time = [number(entry["seconds"], ".1f"), number(entry.get("seconds_per_round"), ".3g")]
    rejected = str(len(entry.get("rejected") or {}))
    setting = _conditions(row.settings)
    return [row.method, setting, str(row.head["rounds"]), str(entry["best_round"]), *time, rejected]


def drawn_figures(records: Sequence[Record]) -> dict[str, Figure]:
    """The figures of every record: panels for several settings, and accuracy over an option of at least three values;
    for one run convergence, and xi if the file has it.
    """
    drawn: dict[str, Figure] = {}
    for record in records:
        content = record.content
        if is_convergence(content):
            drawn[record.name] = convergence.draw(content)
        elif is_faulty(content):
            drawn[record.name] = faulty.draw(content)
        elif is_grid(content):
            drawn[record.name] = figures.panels(content)
            over = sweeps(content)
            drawn |= {f"{record.name}-over-{one.option.replace(' ', '-')}": figures.sweep(content, one) for one in over}
        else:
            run = cast(RunResults, content)
            if any(len(entry["rounds"]) > 1 for entry in run["methods"].values()):  # else points, not curves
                drawn[record.name] = figures.convergence(run)
            weights = figures.xi_heatmap(run)
            drawn |= {f"{record.name}-xi": weights} if weights else {}
    return drawn


def page(records: Sequence[Record], command: str, images: Sequence[str] = ()) -> str:
    """All tables in Markdown."""
    measured = list(rows(records))
    out = ["# Results", f"Made from result files by `{command}`; no number here is typed by hand."]
    for setting in ("iid", "pathological", "practical"):
        out += fedamp_table(setting, measured)
    out += other_runs(measured) + pflego_degrees(measured) + pflego_omniglot(measured)
    for record in records:
        if is_convergence(record.content):
            out += theorems(record.name, record.content)
        elif is_faulty(record.content):
            out += faulty_clients(record.name, record.content)
        elif record.content["experiment"] == "ablation":
            out += decisions(record.name, cast(RunResults, record.content))
        elif record.content["experiment"] == "leads":
            out += lead_table(record.name, cast(RunResults | GridResults, record.content))
    if images:
        out += ["## Figures", *(f"![{Path(image).stem}]({image})" for image in images)]
    return "\n\n".join([*out, *runs(records, measured)]) + "\n"


def execute(options: Options) -> None:
    """Print the page, write it, or write small copies of the files."""
    records = read(options.results, KINDS)
    names = [record.name for record in records]
    if len(set(names)) < len(names):
        raise ValueError(f"result files must have different names, or lie in folders with different names; got {names}")
    if options.note is not None and options.slim is None:
        raise ValueError("--note is for --slim, which writes it into the small copies: leave it out, or give --slim")
    if options.slim is not None:
        folder = local_path(options.slim, "--slim")
        if folder.is_file():
            raise ValueError(f"--slim {options.slim} is a file; give a folder")
        for record in records:
            messages.say(str(slim(record, folder, options.note)))
        return
    command = shlex.join(["python", "tables.py"])
    if options.write is None:
        print(page(records, f"{command} RESULTS..."))
        return
    path = local_path(options.write, "--write")
    if path.is_dir():
        raise ValueError(f"--write {path} is a folder; give the name of a file, such as {path / 'results.md'}")
    command = shlex.join(["python", "tables.py", "--write", options.write, *options.results])
    images = []
    for name, figure in drawn_figures(records).items():
        images.append(f"figures/{figures.save(figure, path.parent / 'figures' / f'{name}.png', dpi=110).name}")
    files.replace(path, page(records, command, images).encode())
    messages.say(str(path))


def main() -> None:
    """Run from the command line."""
    options = tyro.cli(Options, description=__doc__)
    with command_line.readable_errors():
        execute(options)


if __name__ == "__main__":
    main()
