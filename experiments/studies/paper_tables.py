"""The papers' tables in Markdown: our values beside the paper's, from the rows of result files."""

from collections.abc import Sequence

from rows import best, in_tables

from fedamp_jax.algorithms.registry import PAPER_METHODS
from fedamp_jax.experiments import paper_values
from fedamp_jax.report.files import Row, p_value

TITLES = {
    "digits": "digits", "mnist": "MNIST", "fashion_mnist": "FMNIST", "emnist": "EMNIST", "cifar10": "CIFAR-10",
    "cifar100": "CIFAR100", "omniglot": "Omniglot",
}  # fmt: skip
_SETTINGS = {
    "iid": ("Table 1", "IID"),
    "pathological": ("Table 2", "pathological"),
    "practical": ("Table 3", "practical"),
}
_PAPER = ("mnist", "fashion_mnist", "emnist", "cifar100")
_OURS = ("FedAMP", "HeurFedAMP")
_FAR = 2.0  # difference from the paper, in points, from which on a cell is listed


def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A Markdown table with the first column aligned left, the others right."""
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *body]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def number(value: float | None, form: str = ".2f") -> str:
    """`value`, or "-"."""
    return "-" if value is None else format(value, form)


def spread(value: float | None, half: float | None) -> str:
    """`value±half`, or "-"."""
    return number(value) + (f"±{half:.2f}" if half is not None else "")


def cell(
    ours: float | None, theirs: float | None, ours_spread: float | None = None, theirs_spread: float | None = None
):
    """`ours / paper (difference)`."""
    if ours is None and theirs is None:
        return "-"
    gap = "" if ours is None or theirs is None else f" ({ours - theirs:+.2f})"
    return f"{spread(ours, ours_spread)} / {spread(theirs, theirs_spread)}{gap}"


def fedamp_table(setting: str, measured: Sequence[Row]) -> list[str]:
    """One of Tables 1 to 3: BMTA, p-values, sources, and large differences; nothing if no row belongs in it."""
    kept = [row for row in measured if row.head["experiment"] == setting and in_tables(row)]
    if not kept:
        return []
    columns: dict[str, str] = {}  # data set by title; each model has a column
    found: dict[str, dict[str, Row]] = {}
    for d in TITLES:
        of = [row for row in kept if row.head["dataset"] == d]
        models = list(dict.fromkeys(row.settings["model"] for row in of))
        for model in models:
            title = f"{TITLES[d]}, {model}" if len(models) > 1 else TITLES[d]
            columns[title] = d
            found[title] = best([row for row in of if row.settings["model"] == model])
        if not models and d in _PAPER:
            columns[TITLES[d]] = d
    others = dict.fromkeys(row.method for row in kept if row.method not in PAPER_METHODS)
    body = []
    for name in (*PAPER_METHODS, *others):
        line = [name]
        for title, d in columns.items():
            entry = found[title][name].entry if name in found.get(title, {}) else {}
            theirs = paper_values.PAPER_BMTA.get((setting, d, name))
            line.append(cell(entry.get("bmta"), theirs, entry.get("bmta_std")))
        body.append(line)
    number_of, word = _SETTINGS[setting]
    out = [f"## FedAMP paper, {number_of}: {word} setting", "BMTA in percent: ours / the paper's (difference)."]
    out.append(table(["method", *columns], body))
    out += p_table(found)
    out += [sources(title, found[title]) for title in found]
    if setting == "practical":
        out += [order(title, found[title]) for title in found]
    return out + far(setting, found)


def p_table(found: dict[str, dict[str, Row]]) -> list[str]:
    """p-values of every method against FedAMP and HeurFedAMP."""
    pairs = [(title, ours) for title in found for ours in _OURS if ours in found[title]]
    if not pairs:
        return []
    names = dict.fromkeys(name for methods in found.values() for name in methods)
    body = []
    for name in names:
        line = [name]
        for title, ours in pairs:
            rows = found[title]
            p = p_value(rows[name], rows[ours]) if name in rows and name != ours else None
            line.append("-" if p is None else "< 0.0001" if p < 1e-4 else f"{p:.4f}")
        body.append(line)
    text = "Two-sided Wilcoxon signed-rank p over the clients' accuracies in the last round, against the method above:"
    return [text, table(["method", *(f"{title}: {ours}" for title, ours in pairs)], body)]


def order(title: str, found: dict[str, Row]) -> str:
    """Whether FedAMP and HeurFedAMP are better than all others, as the paper reports for the practical setting."""
    names = [name for name in found if name in PAPER_METHODS and name not in _OURS]
    rounds = {found[name].head["rounds"] for name in _OURS if name in found}
    others = [name for name in names if {found[name].head["rounds"]} == rounds]
    elsewhere = [name for name in names if name not in others]
    against, weak = [], []
    for ours in (name for name in _OURS if name in found):
        for name in others:
            gap = found[ours].entry["bmta"] - found[name].entry["bmta"]
            p = p_value(found[ours], found[name])
            if abs(gap) < 0.005:
                against.append(f"{name} is on par with {ours} (p = {number(p, '.2g')})")
            elif gap < 0:
                against.append(f"{name} is above {ours} by {-gap:.2f} points (p = {number(p, '.2g')})")
            elif p is None or p >= 0.05:
                weak.append(f"{name} (p = {number(p, '.2g')} against {ours})")
    missing = [name for name in PAPER_METHODS if name not in found]
    scope = f" Not measured: {', '.join(missing)}." if missing else ""
    scope += f" Not compared, as their number of rounds differs: {', '.join(elsewhere)}." if elsewhere else ""
    if not others or not set(_OURS) & set(found):
        return f"- **{title}, order of methods:** too few methods were measured.{scope}"
    if against:
        verdict = f"the paper's order does not hold: {'; '.join(against)}."
    else:
        above = " and ".join(name for name in _OURS if name in found)
        verdict = f"the paper's order holds: {above} {'are' if ' and ' in above else 'is'} above "
        verdict += f"{others[0]}, the only other." if len(others) == 1 else f"all {len(others)} others measured."
    doubt = f" Above, but not significantly at 5 %: {', '.join(weak)}." if weak else ""
    return f"- **{title}, order of methods:** {verdict}{doubt}{scope}"


def far(setting: str, found: dict[str, dict[str, Row]]) -> list[str]:
    """The cells that differ from the paper by more than two points."""
    gaps = []
    for title, by_method in found.items():
        for name, row in by_method.items():
            theirs = paper_values.PAPER_BMTA.get((setting, row.head["dataset"], name))
            if theirs is not None and abs(row.entry["bmta"] - theirs) > _FAR:
                gaps.append(f"{title} {name} {row.entry['bmta'] - theirs:+.2f}")
    return [f"More than {_FAR:g} points from the paper: {', '.join(gaps)}."] if gaps else []


def sources(title: str, found: dict[str, Row]) -> str:
    """The runs that the cells of a column are taken from."""
    runs = {}
    for name, row in found.items():
        own = row.settings
        seeds = f"seeds {', '.join(map(str, own['seeds']))}" if own.get("seeds") else f"seed {own['seed']}"
        note = f"; {row.head.get('note')}" if row.head.get("note") else ""
        model = f"{own['model']}, " if own.get("model") else ""
        text = f"{model}{row.head['rounds']} rounds, {seeds}, run `{row.record.name}`{note}"
        runs.setdefault(text, []).append(name)
    if len(runs) == 1:
        return f"- {title}: {next(iter(runs))}."
    return f"- {title}: " + "; ".join(f"{', '.join(names)}: {text}" for text, names in runs.items()) + "."


def pflego_degrees(measured: Sequence[Row]) -> list[str]:
    """PFLEGO's Table 1, means of the last rounds with confidence intervals; nothing if no row belongs in it."""
    kept = [row for row in measured if row.head["experiment"] == "degrees" and in_tables(row)]
    if not kept:
        return []
    body, origins = [], []
    for d in TITLES:
        found: dict[str, dict[str, Row]] = {}
        for degree, title in paper_values.DEGREES.items():
            mine = [row for row in kept if (row.head["dataset"], row.settings["degree"]) == (d, degree)]
            found[degree] = best(mine)
            if mine:
                origins.append(sources(f"{TITLES[d]}, {title}", found[degree]))
        for name in paper_values.PFLEGO_METHODS:
            theirs = [paper_values.PFLEGO_TABLE1.get((d, degree, name), (None, None)) for degree in found]
            cells = [_last_rounds(methods, name, *one) for methods, one in zip(found.values(), theirs, strict=True)]
            if set(cells) != {"-"}:
                body.append([TITLES[d], name, *cells])
    text = "Mean accuracy of the last 10 rounds, ± 95 % confidence interval: ours / the paper's (difference)."
    head = ["data", "method", *paper_values.DEGREES.values()]
    return ["## PFLEGO paper, Table 1: degrees of personalization", text, table(head, body), *origins]


def pflego_omniglot(measured: Sequence[Row]) -> list[str]:
    """PFLEGO's Table 2, as its Table 1; nothing if no row belongs in it."""
    of_omniglot = [row for row in measured if row.head["experiment"] == row.head["dataset"] == "omniglot"]
    found = best([row for row in of_omniglot if in_tables(row)])
    if not found:
        return []
    body = [
        [name, _last_rounds(found, name, *paper_values.PFLEGO_TABLE2[name])] for name in paper_values.OMNIGLOT_METHODS
    ]
    text = "Mean accuracy of the last 10 rounds, ± 95 % confidence interval: ours / the paper's (difference)."
    return ["## PFLEGO paper, Table 2: Omniglot", text, table(["method", "Omniglot"], body), sources("Omniglot", found)]


def _last_rounds(found: dict[str, Row], name: str, theirs: float | None, theirs_ci: float | None) -> str:
    score = found[name].entry.get("last_rounds", {}) if name in found else {}
    return cell(score.get("mean"), theirs, score.get("ci95"), theirs_ci)
