"""Report and figures from results. Each docstring names wrong implementations that the test has caught; the assertions
are about what a reader sees, not about pixels."""

import csv
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import optax
import pytest
import rich.console
import sigma_sweep
from plotly.offline import get_plotlyjs

import fedamp_jax
from fedamp_jax.algorithms.registry import METHODS
from fedamp_jax.analysis import holm
from fedamp_jax.report import charts, figures, files, method_table, report, run_page, styles
from fedamp_jax.runner.train import last_rounds
from tests.small_experiments import method_entry

NAMES = ["Separate", "FedAvg", "FedAMP", "HeurFedAMP"]


def method(bmta, clients=6, rounds=3, xi=None, **changes):
    """One method's entry, whose best round is the second of three."""
    curve = [bmta - 2.0, bmta, bmta - 1.0][:rounds]
    curves = {"in_group_weight": [0.3, 0.5, 0.75][:rounds], "ari": [0.0, None, 1.0][:rounds]} if xi is not None else {}
    return {
        "bmta": bmta,
        "best_round": 4,
        "final": curve[-1],
        "accuracy": [bmta] * clients,
        "best_accuracy": [bmta - 3 + i for i in range(clients)],
        "rounds": [2, 4, 6][:rounds],
        "mean_accuracy": curve,
        "loss": [1.0, float("nan"), 0.25][:rounds],
        "seconds": 3.0,
        "seconds_per_round": 0.512,
        "rejected": {},
        "settings": {},
        "paper": None,
        "xi": xi,
        "in_group_weight": None,
        "ari": None,
        **curves,
        **changes,
    }


@pytest.fixture
def results():
    """Four methods, two with weights, 6 clients in 2 groups."""
    xi = np.kron(np.eye(2), np.full((3, 3), 0.3)) + 0.02
    methods = {n: method(80.0 + 5 * i, xi=xi if "AMP" in n else None) for i, n in enumerate(NAMES)}
    methods["FedAMP"].update(paper=91.5, rejected={"17": 1, "4": 3}, settings={"sigma": 1000.0})
    return {
        "experiment": "practical",
        "dataset": "digits",
        "created": "2030-01-02T03:04:05",
        "command": "python experiments/practical.py",
        "settings": {"rounds": 6, "data_dir": None},
        "versions": {"jax": "0.10.2"},
        "device": "cpu x1",
        "clients": 6,
        "groups": [0, 0, 0, 1, 1, 1],
        "rounds": 6,
        "methods": methods,
        "wilcoxon": {
            "FedAMP": {"Separate": 5e-5, "FedAvg": 0.03125, "HeurFedAMP": 0.5},
            "HeurFedAMP": {"Separate": 1e-4, "FedAvg": float("nan"), "FedAMP": 0.5},
            "Separate": {"FedAvg": 0.1},
        },
        "chance_in_group_weight": 0.4,
    }


def cells(page):
    """The tables of a page, as lists of rows of texts; every tag must be closed in order."""
    tables, open_tags = [], []

    class Reader(HTMLParser):
        def handle_starttag(self, tag, attrs):
            if tag not in ("meta", "input"):
                open_tags.append(tag)
            {"table": lambda: tables.append([]), "tr": lambda: tables[-1].append([])}.get(tag, lambda: None)()
            if tag in ("td", "th"):
                tables[-1][-1].append("")

        def handle_endtag(self, tag):
            assert open_tags.pop() == tag

        def handle_data(self, data):
            if {"td", "th"} & set(open_tags):
                tables[-1][-1][-1] += data

    Reader().feed(page)
    assert not open_tags
    return tables


def test_the_table_shows_what_was_measured(results):
    """Fails if methods are sorted, if the difference has the wrong sign, or if a missing paper's value reads 0."""
    head, *rows = cells(run_page.html(results))[0]
    usual = ["method", "BMTA (%)", "final (%)", "paper (%)", "ours - paper", "best round", "s / round", "rejected"]
    assert head[:8] == usual
    assert [row[0] for row in rows] == NAMES
    assert rows[0][:8] == ["Separate", "80.00", "79.00", "–", "–", "4", "0.512", "0"]
    assert rows[2][:8] == ["FedAMP", "90.00", "89.00", "91.50", "-1.50", "4", "0.512", "2"]


def test_without_the_papers_values_there_are_no_columns_for_them(results):
    """Fails if the columns are shown."""
    results["methods"]["FedAMP"]["paper"] = None
    results["wilcoxon"] = {}
    assert len(cells(run_page.html(results))[0][0]) == 6


def test_p_values_and_points_of_the_same_round(results):
    """Corrected for the four that are known. Fails with BMTA's points, which are of other rounds, with uncorrected p,
    if FedAMP and HeurFedAMP count twice, or if other methods are compared with all.
    """
    results["methods"]["FedAvg"]["accuracy"] = [60.0] * 6  # its BMTA stays 85
    head, *rows = cells(run_page.html(results))[0]
    assert head[8:] == [f"{word} {name}" for name in NAMES[2:] for word in ("points above", "p against")]
    assert rows[0][8:] == ["-10.00", "0.0002", "-15.00", "0.0003"]
    assert rows[1][8:] == ["-30.00", "0.0625", "-35.00", "–"]
    assert rows[2][8:] == ["–", "–", "-5.00", "0.5000"]
    assert rows[3][8:] == ["+5.00", "0.5000", "–", "–"]
    assert "p of 6 clients cannot be below 0.031." in run_page.html(results)


def test_holm():
    """Against values worked out by hand. Fails with Bonferroni's factor for all, and without the running maximum."""
    assert holm([0.02, 0.01, 0.03, 0.9]) == pytest.approx([0.06, 0.04, 0.06, 0.9])
    assert holm([0.5, 0.6]) == [1.0, 1.0] and holm([]) == []


def test_headline(results):
    """Fails if the first method is taken for the best, or the first round's weights for the last's."""
    assert method_table.headline(results) == (
        "HeurFedAMP has the highest BMTA, 95.00% (round 4); FedAMP: 90.00%; Separate: 80.00%; FedAvg: 85.00%. "
        "Of the weight given to others, 75% in FedAMP and 75% in HeurFedAMP stays in the client's own group "
        "(chance: 40%)."
    )


def test_rejected_clients_are_named(results):
    """Fails if only their number is given, or if they are sorted as text (17 before 4)."""
    assert "Rejected in FedAMP: client 4 (3 rounds), client 17 (1 round)." in run_page.html(results)


def test_rejected_clients_are_named_in_the_terminal(results):
    """A line for each method, by the clients' ids, with the first five and how many there are besides.

    Fails if the table has only their number, if they are called by their rows, or if a hundred are named.
    """
    results["ids"] = list(range(100, 100 + results["clients"]))
    rejected = {str(i): 2 for i in range(7)}
    results["methods"]["Separate"]["rejected"] = rejected
    shown = io.StringIO()
    rich.console.Console(file=shown, width=200).print(method_table.table(results))
    said = " ".join(shown.getvalue().split())  # lines end where the table does
    assert "Rejected in FedAMP: client 104 (3 rounds), client 17 (1 round)." in said
    named = ", ".join(f"client {i} (2 rounds)" for i in range(100, 105))
    assert f"Rejected in Separate: {named}, and 2 more." in said
    assert "client 105 (2 rounds), client 6 (2 rounds)." in run_page.html(results)  # the page has all of them


def test_everything_is_escaped(results, tmp_path):
    """Fails for every `escape` taken out of page.py and charts.py, one at a time, and if `<` stays in a chart."""
    evil = "<script>alert('1')</script>&\"$x^{"
    keys = ("experiment", "dataset", "created", "command", "device")
    text = {key: f"{key}{evil}" for key in keys}
    results["methods"] = {f"method{evil}": results["methods"]["FedAMP"], **results["methods"]}
    results["methods"][f"method{evil}"].update(rejected={f"client{evil}": 1}, settings={f"own{evil}": f"value{evil}"})
    results.update(text, settings={f"setting{evil}": f"value{evil}"}, versions={f"package{evil}": f"version{evil}"})
    results["wilcoxon"] = {f"method{evil}": {"Separate": 0.5}}
    results["groups"] = [f"group{evil}", *"aabbb"]
    page = own(report.write(results, tmp_path).read_text())
    assert "<script>alert" not in page and "</script>&" not in page
    for kind in (*keys, "method", "client", "own", "value", "setting", "package", "version", "group"):
        assert f"{kind}&lt;script&gt;" in page
    assert cells(page)
    figures = json.loads(re.search(r'id="charts">(.*?)</script>', page, re.DOTALL)[1])
    names = [trace["name"] for figure in figures.values() for trace in figure["data"] if "name" in trace]
    assert any("method&lt;script" in name for name in names) and not any("<script" in name for name in names)


def own(page):
    """A page without Plotly's program."""
    return page.replace(get_plotlyjs(), "")


def test_the_page_and_its_files(results, tmp_path):
    """Fails if something is loaded, if a figure lacks a format, or if a link leads nowhere."""
    page = own(report.write(results, tmp_path).read_text())
    assert "http" not in page.replace("http-equiv", "") and "src=" not in page
    names = {f"{name}.{kind}" for name in ("convergence", "accuracy", "xi", "groups") for kind in figures.FORMATS}
    assert {p.name for p in tmp_path.iterdir()} == {"report.html", *names}
    assert set(re.findall(r'href="([^"]*)"', page)) == {*names, "results.json", "history.csv"}
    assert (tmp_path / "xi.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "xi.pdf").read_bytes().startswith(b"%PDF")
    before = (tmp_path / "xi.svg").read_bytes(), (tmp_path / "xi.pdf").read_bytes()
    report.write(results, tmp_path)
    assert ((tmp_path / "xi.svg").read_bytes(), (tmp_path / "xi.pdf").read_bytes()) == before


def test_a_sweep_of_sigma():
    """Fails if the values of sigma are not sorted."""
    rows = {"FedAMP": {"sigma": [100, 1, 10], "bmta": [90.0, 80.0, 95.0], "in_group_weight": [0.5, None, 0.9]}}
    figure = sigma_sweep.sigma_sensitivity(rows, chance=0.4)
    assert figure is not None
    assert [axes.get_xscale() for axes in figure.axes] == ["log", "log"]
    assert figure.axes[0].get_lines()[0].get_xydata().tolist() == [[1, 80], [10, 95], [100, 90]]


def test_what_is_missing_is_left_out(results, tmp_path):
    """One method, one round, one client, no groups, no weights, nothing finite. Fails on an empty panel or table."""
    bare = method(50.0, clients=1, rounds=1, loss=None, rejected=None)
    results.update(methods={"Separate": bare}, clients=1, groups=None, wilcoxon={}, chance_in_group_weight=None)
    assert figures.xi_heatmap(results) is None
    assert figures.group_discovery(results) is None
    assert sigma_sweep.sigma_sensitivity({"FedAMP": {"sigma": [1.0], "bmta": [None]}}) is None
    page = own(report.write(results, tmp_path).read_text())
    assert {p.stem for p in tmp_path.iterdir()} == {"report", "convergence", "accuracy"}
    assert "Wilcoxon" not in page and "Attention weights" not in page and "Training loss" not in page
    assert [table[0][0] for table in cells(page)] == ["method", "client", "setting", "package"]
    assert method_table.headline(results) == "Separate has the highest BMTA, 50.00% (round 4)."
    bare.update(bmta=float("nan"), final=None, mean_accuracy=[float("nan")], best_accuracy=[None], xi=[[1.0]])
    assert cells(own(report.write(results, tmp_path).read_text()))[0][1][1:3] == ["–", "–"]
    assert method_table.headline({**results, "methods": {"x": {"bmta": None}}}) == "No method has a finite accuracy."


def test_heat_map_masks_the_diagonal_and_sorts_by_group(results):
    """Groups out of order. Fails if the diagonal sets the scale, if clients are not sorted, or if their IDs are not."""
    groups = np.array([7, 3, 7, 3, 7, 3])
    xi = np.where(groups[:, None] == groups, 0.3, 0.01) + 10.0 * np.eye(6)
    results["groups"] = groups.tolist()
    results["methods"] = {"FedAMP": method(90.0, xi=xi)}
    figure = figures.xi_heatmap(results)
    assert figure is not None
    axes = figure.axes[0]
    shown = axes.images[0].get_array()
    assert shown.mask.tolist() == np.eye(6, dtype=bool).tolist()
    assert axes.images[0].get_clim() == (0.0, pytest.approx(0.3))
    assert (shown[:3, :3].min(), shown[:3, 3:].max()) == (0.3, 0.01)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "2", "4", "1", "3", "5"]
    assert [line.get_xdata()[0] for line in axes.get_lines() if line.get_xdata()[0] == line.get_xdata()[1]] == [2.5]


def test_every_method_has_its_own_line(results):
    """Fails if two of all known and 100 unknown methods look alike, or if a method's look depends on the others.

    The 13 variants of the ablation are unknown: the first and the last of them once had one look.
    """
    looks = styles.styles([*styles.KNOWN, *map(str, range(100))])
    assert len(set(looks.values())) == len(looks)
    assert all(styles.styles([name]) == {name: looks[name]} for name in styles.KNOWN)
    assert {style.marker for style in looks.values()} <= set(charts._SYMBOLS)
    fedavg, fedprox = looks["FedAvg"], looks["FedProx"]
    assert fedavg.line != fedprox.line and fedavg.rank < fedprox.rank and fedavg.width > fedprox.width
    figure = figures.convergence(results)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == NAMES


def test_what_is_sent_is_on_the_page(results):
    """In models, and not at all in results of earlier versions. Failed with bytes."""
    assert "Messages" not in run_page.html(results, [])
    results["methods"]["FedAMP"]["sent"] = {"exchanges": 2, "down": 300, "up": 100, "model": 200}
    page = run_page.html(results, [])
    assert "Messages" in page
    assert re.search(r"FedAMP</t[dh]>\s*<td[^>]*>2</td>\s*<td[^>]*>1.50</td>\s*<td[^>]*>0.50</td>", page)


def test_the_legend_fits_beside_the_curves(results):
    """It lies within the figure, and leaves room for the curves. Failed with 23 methods in one column."""
    results["methods"] = {name: method(80.0) for name in list(METHODS)[: styles.MANY]}
    figure = figures.convergence(results)
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert box.y0 >= 0 and box.y1 <= figure.bbox.height and box.x1 <= figure.bbox.width
    assert figure.axes[0].bbox.width > 0.6 * figure.bbox.width


def test_many_methods_have_a_panel_each(results):
    """In which the method's own line is the only coloured one, on axes that are the same for all.

    The last value stands in the title. Failed with all lines in one panel, with axes from the lowest value on, and with
    rounds below the panels of the last row alone, which is not full.
    """
    names, rounds = list(METHODS)[:27], list(range(1, 11))
    results["methods"] = {
        name: method(70.0, rounds=3) | {"rounds": rounds, "mean_accuracy": [10.0, *([70.0 + i] * 8), 80.0 + i]}
        for i, name in enumerate(names)
    }
    results["methods"]["FedAMP"]["mean_accuracy"][-1] = None
    figure = figures.convergence(results)
    figure.draw_without_rendering()
    assert len(figure.axes) == len(names) and len({panel.get_ylim() for panel in figure.axes}) == 1
    for i, (name, panel) in enumerate(zip(names, figure.axes, strict=True)):
        assert panel.get_title() == f"{name}  {70.0 + i if name == 'FedAMP' else 80.0 + i:.1f}"
        others, own = panel.get_lines()
        assert others.get_color() == "0.85" and np.isfinite(others.get_ydata()).sum() == len(names) * 10 - 1
        assert own.get_color() == styles.styles(names)[name].colour
        assert own.get_xdata().tolist() == rounds and own.get_ydata()[1] == 70.0 + i
    low, high = figure.axes[0].get_ylim()
    assert 60.0 < low < 70.0 and 106.0 < high < 120.0
    below = [i for i, panel in enumerate(figure.axes) if panel.xaxis.get_tick_params()["labelbottom"]]
    assert below == [23, 24, 25, 26]


def test_many_lines_of_a_page_show_how_they_end():
    """And labels stay beside the axis, also that of a line that ends below it. Failed with the whole range, and with
    labels at heights outside the axis, which moved all of them.
    """
    names, rounds = list(METHODS)[:20], list(range(1, 11))
    ends = np.linspace(80.0, 90.0, 20)
    methods = {name: {"rounds": rounds, "mean_accuracy": [10.0, *([end] * 9)]} for name, end in zip(names, ends)}
    methods[names[0]]["mean_accuracy"][-1] = 30.0
    figure = charts.curves(methods, "mean_accuracy", "accuracy")
    assert figure is not None
    low, high = figure.layout.yaxis.range
    assert 70.0 < low < 80.0 and 90.0 < high < 92.0
    labels = {trace.name.removesuffix(" label"): trace.y for trace in figure.data if trace.name.endswith(" label")}
    assert all(low <= y <= high for pair in labels.values() for y in pair)
    assert labels[names[0]][0] == low and labels[names[-1]][0] == 90.0
    few = charts.curves({name: methods[name] for name in names[:12]}, "mean_accuracy", "accuracy")
    assert few is not None and few.layout.yaxis.range[0] < 10.0


def test_labels_do_not_cover_each_other():
    """18 methods that end alike. Fails if the gap is that of another axis, or if labels leave it."""
    for values, limits, log in ((np.full(18, 99.0), (0, 100), False), ([1e-3, 1e-3, 1.0], (1e-4, 1.0), True)):
        heights = np.sort(charts.spread(list(values), limits, log))
        pixels = (np.log(heights / limits[0]) / np.log(limits[1] / limits[0]) if log else heights / 100) * 400
        assert np.diff(pixels).min() > 13.9 and heights.max() <= limits[1] + 1e-9 and heights.min() >= limits[0]


def test_bands_and_seeds(results):
    """Fails if the band is not around its line, or if the seeds are not in the head."""
    results["methods"]["FedAMP"]["mean_accuracy_std"] = [1.0, 2.0, 3.0]
    figure = charts.curves(results["methods"], "mean_accuracy", "accuracy")
    bands = {trace.name: trace for trace in figure.data if trace.fill == "toself"}
    assert list(bands["FedAMP band"].y) == [89.0, 92.0, 92.0, 86.0, 88.0, 87.0] and len(bands) == 1
    results["settings"]["seeds"] = [0, 3]
    page = own(run_page.html(results))
    assert "mean of 2 seeds (0, 3)" in page and "one standard deviation over the seeds" in page


def test_group_discovery_draws_chance(results):
    """Fails if chance is missing, or if a method without weights is drawn."""
    figure = figures.group_discovery(results)
    assert figure is not None
    labels = [[line.get_label() for line in axes.get_lines()] for axes in figure.axes]
    assert labels == [["FedAMP", "HeurFedAMP", "chance"]] * 2
    assert [axes.get_lines()[-1].get_ydata()[0] for axes in figure.axes] == [0.4, 0.0]


def test_terminal_table_fits_and_shows_names_literally(results):
    """Fails if `[red]` is read as markup, or if a column is cut at 80 characters: so did headers of one line."""
    results["methods"]["Own [red]"] = method(70.0)
    for entry in results["methods"].values():
        entry["last_rounds"] = {"mean": 84.56, "ci95": 0.71}
    console = rich.console.Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(method_table.table(results))
    console.file.close()
    text = console.export_text()
    assert "Own [red]" in text
    assert "…" not in text
    assert "HeurFedAMP" in text and text.count("84.56±0.71") == 5 and "rejected" in text


def test_history(results, tmp_path):
    """Fails if NaN is written out, or if rounds are counted rather than read."""
    path = files.write_history(results, tmp_path / "new" / "history.csv")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12
    assert list(rows[0].values()) == ["Separate", "2", "78.0", "1.0", "", ""]
    assert list(rows[7].values()) == ["FedAMP", "4", "90.0", "", "0.5", ""]


def test_json_is_standard_and_complete(results, tmp_path):
    """Fails on json.dump with numpy arrays and keys, on NaN tokens, and if white space inside strings is touched."""
    text = "[\n  1,\n  2\n]"
    results["settings"] = {
        "array": np.float32([0.5, np.nan]),
        "scalar": np.float32(np.inf),
        "float64": np.float64("nan"),
        "int": np.int64(3),
        "bool": np.bool_(True),
        "path": Path("a"),
        "tuple": (1, [2, 3]),
        "text": text,
        np.int64(7): None,
    }
    path = files.write_json(results, tmp_path / "results.json")

    def refuse(token):
        raise AssertionError(token)

    read = json.loads(path.read_text(), parse_constant=refuse)
    assert list(read["settings"].values()) == [[0.5, None], None, None, 3, True, "a", [1, [2, 3]], text, None]
    assert read["settings"]["7"] is None
    assert read["methods"]["FedAMP"]["loss"] == [1.0, None, 0.25]
    assert "[0.5, null]" in path.read_text()
    assert run_page.html(read) == run_page.html({**results, "settings": read["settings"]})


def test_a_failed_write_leaves_the_old_file_and_no_other(results, tmp_path, monkeypatch):
    """Fails if the file is opened before its content is known, or if the temporary file stays."""
    path = files.write_json(results, tmp_path / "results.json")
    before = path.read_text()
    with pytest.raises(TypeError, match=r"results\['settings'\]\['x'\] holds a object"):
        files.write_json({**results, "settings": {"x": object()}}, path)
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        files.write_json({**results, "clients": 7}, path)
    assert path.read_text() == before
    assert [p.name for p in tmp_path.iterdir()] == ["results.json"]


def test_newcomers_without_test_data_are_left_out():
    """The mean is that of the others. Failed with no mean at all."""
    new = {"clients": [1, 2], "start": [10.0, None], "adapted": [20.0, 40.0]}
    cells = method_table.cells({"methods": {"A": method_entry([50.0, 60.0], new_clients=new)}, "wilcoxon": {}})
    assert dict(zip(cells.head, cells.rows[0]))["new clients (%)"] == "10.00"


@pytest.mark.slow
def test_runs_of_a_program(tmp_path):
    """Figures, page and files of `Run`s, with groups and weights. Failed with accuracies of 0 to 1, and without xi."""
    train, test, groups = fedamp_jax.data.federation("digits")
    task = fedamp_jax.models.mlp(classes=10, hidden=(4,), shape=(8, 8))
    solver = fedamp_jax.Solver(optax.sgd(0.1), epochs=1)
    methods = {
        "FedAMP": fedamp_jax.fedamp(task, solver, sigma=1.6, self_weight=0.25),
        "FedAvg": fedamp_jax.fedavg(task, solver),
    }
    runs = {name: fedamp_jax.run(task, one, train, test, rounds=2, progress=False) for name, one in methods.items()}
    made = fedamp_jax.report.of_runs(runs, groups, title="my study", dataset="digits", settings={"lr": 0.1})
    assert set(made.figures) == {"convergence", "accuracy", "xi"}
    page = made.write(tmp_path).read_text()
    assert "my study on digits" in page and (tmp_path / "xi.png").exists() and (tmp_path / "history.csv").exists()
    stored = files.load(tmp_path / "results.json")
    assert stored["methods"]["FedAvg"]["final"] == pytest.approx(100 * runs["FedAvg"].accuracy[-1].mean())
    assert stored["wilcoxon"]["FedAMP"]["FedAvg"] is not None and stored["settings"] == {"lr": 0.1}
    with pytest.raises(ValueError, match=r"all runs must have the same clients, got .*'groups': 3"):
        fedamp_jax.report.of_runs(runs, groups[:3])
    with pytest.raises(ValueError, match="at least one run"):
        fedamp_jax.report.of_runs({})


def test_clients_without_test_data_are_left_out_of_tables(tmp_path):
    """Failed in `bmta`, as a dash for the points of a comparison, and as NaN in the score of the last rounds."""
    curves = {
        "FedAvg": np.float32([[0.5, np.nan, 0.75, 0.5]] * 2),
        "FedAMP": np.float32([[0.75, np.nan, 1.0, 0.75]] * 2),
    }
    runs = {
        name: fedamp_jax.Run(None, rounds=[1, 2], metrics={"accuracy": a}, loss=[1.0, 1.0])
        for name, a in curves.items()
    }
    found = fedamp_jax.report.of_runs(runs)
    found.write(tmp_path)
    stored = json.loads((tmp_path / "results.json").read_text())
    assert stored["methods"]["FedAMP"]["final"] == pytest.approx(100 * 2.5 / 3)
    assert stored["methods"]["FedAMP"]["accuracy"][1] is None
    points, p = method_table.comparisons(stored)["FedAMP", "FedAvg"]
    assert points == pytest.approx(-25) and p is not None
    assert last_rounds(curves["FedAMP"], 10)["mean"] == pytest.approx(2.5 / 3)
