"""Result files, and the page of results made from them."""

import json
from pathlib import Path
from typing import get_type_hints

import numpy as np
import paper_tables
import result_types
import rows
import tables

from fedamp_jax.algorithms.registry import BY_NAME, METHODS, PAPER_METHODS
from fedamp_jax.experiments import paper_values
from fedamp_jax.report import files, schema
from tests.small_experiments import command, method_entry


def record(name, experiment="practical", dataset="mnist", methods=(), rounds=90, **changes):
    own = {"seed": 0, "drop_rate": 0.0, "participation": 1.0, "epochs_range": None, "model": "cnn", "sigma": None}
    clients = changes.get("clients") or 20
    entries = {
        method: method_entry(bmta + np.arange(20.0), bmta=bmta, best_round=3, mean_accuracy=[bmta], seconds=9.0,
                             last_rounds={"mean": bmta, "ci95": 0.5, "rounds": 10}, xi=np.eye(clients).tolist())
        for method, bmta in methods
    }  # fmt: skip
    content = {
        "experiment": experiment, "dataset": dataset, "settings": {**own, **changes}, "rounds": rounds,
        "created": "2026", "command": "python /home/experiments/practical.py --data-dir '/home/my data' --out /tmp/x",
        "clients": clients, "groups": None, "chance_in_group_weight": None, "device": "cpu",
        "versions": {"jax": "0"}, "methods": entries, "wilcoxon": {},
    }  # fmt: skip
    return files.Record(name, content)


def page(*found):
    return tables.page(found, "python experiments/tables.py")


def test_tables_compare_with_the_paper():
    """Difference and p in their cells, "-" for what is missing, and the verdict on the order of methods.

    Failed with the sign of the difference flipped, with a p between different seeds, with a verdict from the paper's
    values, and with one between different numbers of rounds.
    """
    good = record("a", methods=(("FedAvg", 80.0), ("FedAMP", 95.0), ("HeurFedAMP", 96.0)))
    text = page(good)
    assert "| FedAMP | 95.00 / 97.59 (-2.59) | - / 90.97 |" in text
    assert "| SCAFFOLD | - / 98.50 |" in text
    assert "MNIST, order of methods:** the paper's order holds" in text and "SCAFFOLD, APFL" in text
    assert "MNIST FedAMP -2.59" in text and "HeurFedAMP -1.36" not in text
    assert "| FedAvg | < 0.0001 | < 0.0001 |" in text
    pair = record("e", methods=(("FedAvg-FT", 80.0), ("FedAMP", 95.0)))
    assert "order holds: FedAMP is above FedAvg-FT, the only other." in page(pair)  # failed with HeurFedAMP
    bad = record("b", dataset="emnist", methods=(("FedAvg", 97.0), ("FedAMP", 95.0)))
    assert "the paper's order does not hold: FedAvg is above FedAMP by 2.00 points" in page(bad)
    level = record("d", methods=(("FedAvg", 95.0), ("FedAMP", 95.0)))
    assert "does not hold: FedAvg is on par with FedAMP (p = 1)" in page(level)
    short = record("c", methods=(("FedProx", 99.0),), rounds=9)
    assert "Not compared, as their number of rounds differs: FedProx." in page(good, short)
    a, b = rows.rows([record("a", methods=(("FedAMP", 95.0),)), record("b", methods=(("FedAvg", 90.0),), seed=1)])
    assert files.p_value(a, b) is None and files.p_value(a, a) == 1.0


def test_tables_take_the_run_closest_to_the_paper():
    """More rounds; one column per model; runs with dropped clients or other local training are left out.

    Failed when the last file was taken, and when five rounds of the paper's model hid ninety of another.
    """
    runs = [
        record("full", methods=(("FedAMP", 91.0),), rounds=90),
        record("short", methods=(("FedAMP", 92.0),), rounds=10),
        record("mlp", methods=(("FedAMP", 93.0),), rounds=900, model="mlp"),
        record("dropped", methods=(("FedAMP", 94.0),), rounds=900, drop_rate=0.5),
        record("fast", methods=(("FedAMP", 94.5),), rounds=900, learning_rate=0.1, epochs=10),
    ]
    text = page(*runs)
    assert "| method | MNIST, cnn | MNIST, mlp | FMNIST |" in text
    assert "| FedAMP | 91.00 / 97.59 (-6.59) | 93.00 / 97.59 (-4.59) | - / 90.97 |" in text
    assert "| method | 50% dropped |" in text and "| FedAMP | 94.00 |" in text
    assert "| method | learning_rate 0.1 |" in text and "| FedAMP | 94.50 |" in text


def test_pflego_tables():
    """Table 1 by degree and Table 2, from single runs and from parts; runs with other steps are left out.

    Failed when every part took the first degree, when a run of two steps was compared with the paper's fifty, and when
    the runs were named without the methods taken from each.
    """
    own = {"participation": paper_values.PFLEGO_PARTICIPATION, "degree": "high"}
    high = record("d", "degrees", methods=(("PFLEGO", 98.0),), **own)
    low = record("d", "degrees", methods=(("PFLEGO", 90.0),), **{**own, "degree": "none"})
    both = {key: value for key, value in high.content.items() if key != "methods"}
    both["parts"] = {"High-Pers": high.content, "No-Pers": low.content}
    text = page(files.Record("d", both))
    assert "| MNIST | PFLEGO | 98.00±0.50 / 98.43±0.21 (-0.43) | - / 94.22±0.43 | 90.00±0.50 / 90.68±0.17" in text
    short = record("short", "degrees", methods=(("FedPer", 91.0), ("PFLEGO", 90.0)), rounds=20, **own)
    text = page(record("long", "degrees", methods=(("PFLEGO", 98.0),), rounds=200, **own), short)
    assert "Pers: FedPer: cnn, 20 rounds, seed 0, run `short`; PFLEGO: cnn, 200 rounds, seed 0, run `long`." in text
    drawings = record("o", "omniglot", "omniglot", (("PFLEGO", 70.0),), **own)
    assert "| PFLEGO | 70.00±0.50 / 75.85±1.21 (-5.85) |" in page(drawings)
    text = page(record("t", "degrees", methods=(("PFLEGO", 97.0),), tau=2, **own))
    assert "97.00±0.50" not in text and "| method | High-Pers, 20% invited, tau 2 |" in text


def test_tables_without_a_result_are_left_out():
    """Failed when the page of one run on digits began with five tables of the papers' values alone."""
    quick = record("a", dataset="digits", methods=(("FedAMP", 40.0),), quick=True)
    assert [line for line in page(quick).splitlines() if line.startswith("## ")] == [
        "## Dropped clients, participation, a narrow model, other local training "
        "(FedAMP paper, Figs. 5 to 9; PFLEGO paper, Fig. 6)",
        "## Runs",
    ]
    iid = record("b", "iid", methods=(("FedAMP", 99.0),))
    headings = [line for line in page(iid).splitlines() if line.startswith("## ")]
    assert headings == ["## FedAMP paper, Table 1: IID setting", "## Runs"]


def test_faulty_clients():
    """The numbers of the largest share, with weights in brackets if there are any. Failed with the first share's."""
    attacks = {"sign": {"shares": [0.1, 0.3], "accuracy": [90.0, 70.5], "weight_to_faulty": [0.1, 0.05]}}
    plain = {"sign": {**attacks["sign"], "weight_to_faulty": None}}
    faulty = record("f", "faulty", "digits", shares=[0.1, 0.3], attacks=["sign"])
    faulty.content["methods"] = {
        "FedAMP": {"clean": 91.0, "attacks": attacks},
        "FedAvg": {"clean": 1, "attacks": plain},
    }
    text = page(faulty)
    assert "| FedAMP | 91.00 | 70.50 (5.0) |" in text and "| FedAvg | 1.00 | 70.50 |" in text and "30%" in text


def test_decisions():
    """Differences are from `base`, whose own row has none. Failed with the sign flipped."""
    found = record("a", "ablation", "digits", (("base", 90.0), ("mean", 88.5)), sigma=2.0, drop_rate=0.5)
    found.content["methods"]["mean"]["ari"] = [1.0, 0.25]
    text = page(found)
    assert "digits, cnn, 90 rounds, sigma 2, 50% dropped. BMTA" in text and text.count("88.50") == 1
    assert "| base | as in `practical.py` | 90.00 | - | - | - | - |" in text
    assert "| 88.50 | -1.50 | 7.7e-06 | - | 0.25 |" in text, text


def test_leads():
    """A row for each lead and one for the paper, also of leads together. Failed with the first part's text in all."""
    one = record("a", "leads", "mnist", (("FedAvg", 95.43), ("FedAMP", 96.21)), lead="tenth+sorted", learning_rate=0.1)
    head, parts = one.content, {}
    head["methods"]["FedAvg"]["paper"] = 81.82
    for lead, methods in (("tenth+sorted", head["methods"]), ("base", {"FedAvg": head["methods"]["FedAvg"]})):
        parts[lead] = {**head, "folder": lead, "settings": {**head["settings"], "lead": lead}, "methods": methods}
    text = page(files.Record("b", {**head, "parts": parts}))
    both = "a tenth of each client's training examples; examples are not shuffled but sorted by class"
    assert f"| tenth+sorted | {both} | 95.43 | 96.21 |" in text and "MNIST, cnn, 90 rounds; BMTA" in text, text
    assert "| base | as in `practical.py` | 95.43 | - |" in text and text.count("95.43") == 2
    assert "| *the paper* |  | 81.82 |" in text and "| FedAvg | base, learning_rate 0.1 | 90 |" in text
    digits = {**head["methods"]["FedAvg"], "paper": None}
    own = {**head, "dataset": "digits", "settings": {**head["settings"], "lead": "base"}, "methods": {"FedAvg": digits}}
    assert "*the paper*" not in page(files.Record("b", own)).partition("## The practical setting with one change")[2]


def test_page_and_slim_files(tmp_path, monkeypatch):
    """Small copies leave out a large xi and this machine's folders, and keep what the page needs.

    Failed when the command kept its --data-dir, and when a quoted folder lost only its first word. A method that was
    evaluated once has no curve: failed with a chart of a point.
    """
    one = record("one", methods=(("FedAMP", 95.123456), ("FedAvg", 80.0)))

    def figures():
        return sorted(tables.drawn_figures([files.Record("one", one.content)]))

    assert figures() == ["one-xi"]
    one.content["methods"]["FedAMP"] |= {"rounds": [1, 2], "mean_accuracy": [90.0, 95.0]}
    assert figures() == ["one", "one-xi"]
    slim = rows.slim(record("many", methods=(("FedAMP", 90.0),), clients=100), tmp_path, None)
    assert "xi" not in json.loads(slim.read_text())["methods"]["FedAMP"]
    files.write_json(one.content, tmp_path / "one" / "results.json")
    command(monkeypatch, tables.main, tmp_path / "one", "--slim", tmp_path / "kept", "--note", "a split of its own")
    kept = json.loads((tmp_path / "kept" / "one.json").read_text())
    assert kept["command"] == "python experiments/practical.py --data-dir DIR"
    assert kept["methods"]["FedAMP"]["bmta"] == 95.1235
    command(monkeypatch, tables.main, tmp_path / "kept" / "one.json", "--write", tmp_path / "docs" / "results.md")
    text = (tmp_path / "docs" / "results.md").read_text()
    assert "95.12 / 97.59 (-2.47)" in text and "a split of its own" in text and "/home" not in text
    assert (tmp_path / "docs" / "figures" / "one.png").stat().st_size > 5000
    assert "figures/one.png" in text and (tmp_path / "docs" / "figures" / "one-xi.png").stat().st_size > 5000


def test_the_command_of_a_whole_file():
    """A run that was resumed with other methods is shown as the one command that gives all that the file holds.

    Failed when the last command was shown, with --resume and the last methods only.
    """

    def shown(words, names, experiment="practical"):
        found = record("a", experiment, methods=[(name, 90.0) for name in names])
        found.content["command"] = f"python x.py {words}"
        return tables.whole_command(found.content).removeprefix("python x.py").strip()

    some = ("FedAvg", "FedAMP")
    assert shown("--lam 5 --methods FedAMP --resume --sigma 2", some) == "--lam 5 --sigma 2 --methods FedAvg FedAMP"
    assert shown("--methods=FedAMP --resume", some) == "--methods FedAvg FedAMP"
    assert shown("--resume", some) == "--methods FedAvg FedAMP"
    every = [name for name in METHODS if name not in BY_NAME]
    assert shown("--resume --data-dir 'my data'", every) == "--data-dir 'my data'"
    assert shown("--methods fedamp --resume", every) == ""
    older = every
    for added in tables._ADDED:  # files from before there were these
        older = [name for name in older if name not in added]
        assert shown("--sigma 2", older) == "--sigma 2"
    assert shown("--methods APFL", PAPER_METHODS) == "--methods paper"
    assert shown("--methods mean --resume", ("base", "mean"), "ablation") == "--methods base mean"
    assert shown("--methods PFLEGO", paper_values.PFLEGO_METHODS, "degrees") == ""
    assert shown("--rounds 10 20", (), "convergence") == "--rounds 10 20"
    resumed = record("a", methods=[(name, 90.0) for name in some])
    resumed.content["command"] += " --methods FedAMP --resume"
    assert "--out /tmp/x --methods FedAvg FedAMP`" in page(resumed)


def test_the_papers_values():
    """Spot checks of every table against the papers. Failed with columns of Table 1 read as value, value, value."""
    assert paper_values.PFLEGO_TABLE1["mnist", "none", "FedAvg"] == (93.12, 0.24)
    assert paper_values.PFLEGO_TABLE1["cifar10", "medium", "PFLEGO"] == (74.83, 0.66)
    assert paper_values.PFLEGO_TABLE1["emnist", "none", "FedAvg"] == (69.4, 0.10)
    assert len(paper_values.PFLEGO_TABLE1) == 36 and paper_values.PFLEGO_TABLE2["FedRecon"] == (74.06, 1.19)
    assert (
        paper_values.PAPER_BMTA["practical", "cifar100", "HeurFedAMP"] == 53.27 and len(paper_values.PAPER_BMTA) == 108
    )
    assert paper_tables.cell(None, None) == "-"


def test_measurements_of_the_documentation_load():
    """Every one is complete, and holds only keys of the schema. Failed when slim copies lacked a required key."""
    paths = sorted(Path(__file__).parents[2].glob("experiments/studies/results/*.json"))
    contents = [files.load(path, result_types.KINDS) for path in paths]
    assert len(contents) > 30
    for row in rows.rows([files.Record("", content) for content in contents]):
        assert set(row.entry) <= set(get_type_hints(schema.MethodResults))
    kinds = {result_types.is_convergence: 1, result_types.is_faulty: 1, schema.is_grid: 9}
    assert {kind: sum(map(kind, contents)) for kind in kinds} == kinds


def test_the_page_of_the_theorems():
    """With the command of the run. Failed with KeyError, as it has no methods."""
    stored = Path(__file__).parents[2] / "experiments/studies/results/theorems.json"
    text = page(*files.read([stored], result_types.KINDS))
    assert "Theorem 2: the bound holds for every K" in text and "### theorems\n\n`python " in text


def test_settings_of_several_values_are_drawn():
    """Panels, and accuracy over the drop rate. Failed with the panels alone."""
    stored = Path(__file__).parents[2] / "experiments/studies/results/dropped-digits.json"
    drawn = tables.drawn_figures(files.read([stored], result_types.KINDS))
    assert list(drawn) == ["dropped-digits", "dropped-digits-over-drop-rate"]
    assert drawn["dropped-digits-over-drop-rate"].axes[0].get_xlabel() == "drop rate"


def test_other_settings_are_named():
    """In a table of their own, with what differs.

    Failed when validation data were shown as BMTA of all clients, and when a narrow ResNet18 was not named.
    A Dirichlet run with the paper's local steps is no run of Tables 1 to 3. It failed to appear anywhere.
    """
    text = page(record("a", methods=(("FedAMP", 95.0),), validation_fraction=0.2, quick=True))
    assert "| method | --quick, validation data |" in text and "| FedAMP | 95.00 |" in text
    text = page(record("b", "dirichlet", methods=(("FedAMP", 91.0),), split="dirichlet", alpha=0.3, clients=30))
    assert "| method | split dirichlet, alpha 0.3, 30 clients |" in text and "| FedAMP | 91.00 |" in text
    text = page(record("d", "concept", methods=(("FedAMP", 92.0),), shift="labels", strength=0.0, groups=4))
    assert "| method | labels, strength 0, 4 groups |" in text and "| FedAMP | 92.00 |" in text
    text = page(record("c", methods=(("FedAMP", 26.0),), model="resnet18", width=4))
    assert "| method | resnet18 of width 4 |" in text and "| FedAMP | 26.00 |" in text
