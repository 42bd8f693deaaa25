"""The experiments' command lines in miniature: several seeds and settings, resuming, bad input."""

import json
import shutil

import numpy as np
import pytest

import fedamp_jax
from fedamp_jax import metrics
from tests.miniature import command, read, small

import ablation  # isort: skip
import common  # isort: skip
import convergence  # isort: skip
import degrees  # isort: skip
import faulty  # isort: skip
import omniglot  # isort: skip
import parts  # isort: skip
import outputs  # isort: skip
import runner  # isort: skip
import settings  # isort: skip
import tables  # isort: skip

SHORT = ("--rounds", "2", "--epochs", "1")


def practical():
    common.main("practical", "practical")


def fake(options, folder):
    """A run that takes no time: accuracies are a function of seed and drop rate."""
    base = 50.0 + options.seed - 10 * options.drop_rate
    accuracy = base + np.arange(8.0).reshape(2, 4)
    entry = {
        **metrics.accuracy_summary(accuracy, [1, 2]), "loss": [1.0, 0.5], "seconds": 2.0, "first_round_seconds": 1.5,
        "seconds_per_round": 0.5, "rejected": {"3": 1}, "paper": None, "in_group_weight": [0.5, 0.6],
        "ari": [None, 1.0], "xi": (np.ones((4, 4)) / 4 + options.seed * np.eye(4)).tolist(),
    }  # fmt: skip
    head = {**outputs.describe_run("practical", options), "clients": 4, "groups": [0, 0, 1, 1]}
    results = {**head, "chance_in_group_weight": 1 / 3, "methods": {"FedAMP": entry}, "wilcoxon": {}}
    fedamp_jax.report.write_json(results, folder / "results.json")
    return results


def variant(title="", **changes):
    return parts.Variant(title, common.finish(common.Options(quick=True, **changes), "practical"))


def test_several_seeds_are_averaged(tmp_path):
    """Mean and sample standard deviation over seeds, of numbers, curves and clients.

    Failed with the population's deviation (n), with the seeds' last entry in place of the mean, and with the BMTA of
    the mean curve.
    """
    result = parts.run("practical", [variant()], (0, 2, 7), tmp_path / "out", fake)
    entry = read(tmp_path / "out")["methods"]["FedAMP"]
    singles = [read(tmp_path / "out" / f"seed={s}")["methods"]["FedAMP"] for s in (0, 2, 7)]
    bmta = [single["bmta"] for single in singles]
    assert entry["bmta"] == pytest.approx(np.mean(bmta))
    assert entry["bmta_std"] == pytest.approx(np.std(bmta, ddof=1))
    assert entry["accuracy"] == pytest.approx(np.mean([single["accuracy"] for single in singles], axis=0).tolist())
    assert entry["ari"] == [None, 1.0] and entry["rejected"] == {"3": 3} and entry["seconds"] == 6.0
    assert np.array(entry["xi"])[0, 0] == pytest.approx(0.25 + 3)
    assert result["settings"]["seeds"] == [0, 2, 7] and result["settings"]["seed"] is None
    assert f"{np.mean(bmta):.2f}±{np.std(bmta, ddof=1):.2f}" in (tmp_path / "out" / "report.html").read_text()


def test_several_settings_become_panels(tmp_path):
    """A folder and a panel per setting; one setting and one seed keep the plain form and stand in the folder itself.

    Failed when every variant was trained with the first one's options, and when a summary kept xi.
    """
    variants = [variant("10% dropped", drop_rate=0.1), variant("50% dropped", drop_rate=0.5)]
    parts.run("practical", variants, (), tmp_path / "out", fake)
    summary = read(tmp_path / "out")
    assert summary["settings"]["drop_rate"] == [0.1, 0.5]
    found = {title: part["methods"]["FedAMP"] for title, part in summary["parts"].items()}
    assert found["10% dropped"]["bmta"] - found["50% dropped"]["bmta"] == pytest.approx(4.0)
    assert found["10% dropped"]["xi"] is None
    assert (tmp_path / "out" / "panels.png").stat().st_size > 5000
    assert (tmp_path / "out" / "10-dropped" / "results.json").exists()
    figure = fedamp_jax.plotting.panels(summary)
    assert [axes.get_title() for axes in figure.axes] == list(summary["parts"])
    assert len({axes.get_ylim() for axes in figure.axes}) == 1
    parts.run("practical", [variant()], (), tmp_path / "plain", fake)
    assert "parts" not in read(tmp_path / "plain") and not list((tmp_path / "plain").glob("seed*"))


def test_a_folder_of_another_summary_is_refused(tmp_path):
    """Other drop rates, or other seeds, in the same folder are another run.

    Failed when only the folders of single runs were compared: without the check of settings, and without that of seeds.
    """
    low, high, other = (variant(f"{rate:.0%} dropped", drop_rate=rate, resume=True) for rate in (0.1, 0.5, 0.3))
    for name, mine, theirs in (("a", ([low, high], ()), ([low, other], ())), ("b", ([low], (0, 1)), ([low], (0, 2)))):
        for _ in range(2):
            parts.run("practical", *mine, tmp_path / name, fake)
        with pytest.raises(ValueError, match="holds another run"):
            parts.run("practical", *theirs, tmp_path / name, fake)
    with pytest.raises(ValueError, match="seeds must differ"):
        parts.run("practical", [low], (0, 0), tmp_path / "new", fake)


def test_drop_rates_that_hardly_differ():
    """Each has a title of its own. Failed with titles in whole percent, which were refused as the same twice."""
    rates = (0.1, 0.101, 0.104, 0.07)
    variants = common.variants_of(common.Command(drop_rate=rates), "practical")
    assert [v.title for v in variants] == ["10% dropped", "10.1% dropped", "10.4% dropped", "7% dropped"]
    assert tables._conditions(vars(variants[1].options)) == "10.1% dropped"


def test_practical_with_drop_rates_and_random_epochs(tmp_path, monkeypatch):
    """The real thing, two drop rates, from the command line; the paper's values only stand beside the paper's setting.

    Failed when `--drop-rate` reached the driver as a list, and when a run with dropped clients got Table 3's values.
    """
    out = tmp_path / "out"
    arguments = (*SHORT, "--methods", "FedAvg", "--drop-rate", "0.1", "0.5", "--epochs-range", "1", "2", "--out", out)
    command(monkeypatch, practical, *arguments)
    summary = read(out)
    assert list(summary["parts"]) == ["10% dropped", "50% dropped"]
    single = read(out / "50-dropped")
    assert single["settings"]["drop_rate"] == 0.5 and single["settings"]["epochs_range"] == [1, 2]
    for name in ("history.csv", "convergence.png", "accuracy.png", "report.html"):
        assert (out / "50-dropped" / name).stat().st_size > 0
    assert "panels" not in {p.stem for p in (out / "50-dropped").iterdir()}
    disturbed = common.variants_of(common.Command(dataset="mnist", drop_rate=(0.3,)), "practical")[0].options
    monkeypatch.setattr(fedamp_jax.data, "federation", lambda *a, **k: small())
    monkeypatch.setattr(common, "make_task", lambda *a: None)
    monkeypatch.setattr(common, "make_algorithms", lambda *a: {})
    seen = []
    monkeypatch.setattr(runner, "train_methods", lambda *a, **k: seen.append(a[6]) or {})
    monkeypatch.setattr(outputs, "write_files", lambda *a: None)
    common.execute("practical", "practical", disturbed, tmp_path)
    common.execute(
        "practical", "practical", common.variants_of(common.Command(dataset="mnist"), "practical")[0].options, tmp_path
    )
    assert seen[0] == {} and seen[1]["FedAMP"] == 97.59


def test_local_steps_of_ones_own():
    """Options of the local steps reach the solver, and such a run is none of the paper's tables.

    Failed when `keep_optimizer` or `optimizer` was not handed on, and when only the drop rate was looked at.
    """
    own = {
        "optimizer": "sgd", "learning_rate": 0.5, "epochs_range": (1, 3), "batch_size": 7, "keep_optimizer": True,
        "chunk": 2,
    }  # fmt: skip
    solver = common.make_solver(common.Options(**own))
    assert (solver.epochs, solver.batch_size, solver.keep_optimizer, solver.chunk) == ((1, 3), 7, True, 2)
    step, _ = solver.optimizer.update(np.full(2, 3.0), solver.optimizer.init(np.ones(2)))
    np.testing.assert_allclose(step, -1.5)  # SGD's; Adam's first step is -0.5
    assert settings.as_in_tables(vars(common.Options()))
    assert not any(settings.as_in_tables(vars(common.Options(**o))) for o in ({"epochs": 5}, {"optimizer": "sgd"}))


def test_results_list_clients_by_id():
    """Whatever the order of the rows: accuracies, weights in both directions, and who was rejected.

    Failed when xi's columns stayed where they were.
    """
    xi = np.arange(9.0).reshape(3, 3)
    rows = fedamp_jax.Run(None, accuracy=np.array([[0.2, 0.0, 0.1]]), rejected=np.array([2, 0, 1]), xi=xi)
    found = runner.by_id(rows, np.array([2, 0, 1]))
    assert found.accuracy.tolist() == [[0.0, 0.1, 0.2]] and found.rejected.tolist() == [0, 1, 2]
    assert found.xi.tolist() == [[4, 5, 3], [7, 8, 6], [1, 2, 0]]
    clients = common.load(common.Options(), "practical")
    assert clients.train.id[1] != 1 and clients.groups[1] == clients.train.id[1] // 4


def test_resume_goes_on_with_what_is_missing(tmp_path, monkeypatch):
    """Interrupted in the second part: --resume trains that one only, and the result is that of an undisturbed run.

    Failed when every part started anew, and when a part's finished methods were taken from another part.
    """
    arguments = (*SHORT, "--methods", "Separate", "--seeds", "0", "1", "--out")
    real, calls = fedamp_jax.run, []

    def interrupted(*a, **k):
        calls.append(k["seed"])
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*a, **k)

    monkeypatch.setattr(fedamp_jax, "run", interrupted)
    with pytest.raises(SystemExit) as stopped:
        command(monkeypatch, practical, *arguments, tmp_path / "a")
    assert stopped.value.code == 130
    command(monkeypatch, practical, *arguments, tmp_path / "a", "--resume")
    assert calls == [0, 1, 1]
    entry = read(tmp_path / "a")["methods"]["Separate"]
    singles = [read(tmp_path / "a" / f"seed={s}")["methods"]["Separate"] for s in (0, 1)]
    assert singles[0]["accuracy"] != singles[1]["accuracy"]
    assert entry["bmta"] == pytest.approx(np.mean([s["bmta"] for s in singles]))


def contents(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("variants", "seeds"), [([""], ()), ([""], (0, 1)), (["a", "b"], ()), (["a", "b"], (0, 1))],
    ids=["one run", "seeds", "settings", "settings and seeds"],
)  # fmt: skip
def test_nothing_is_run_again_unasked(variants, seeds, tmp_path):
    """Without --resume, a folder that holds results or some parts of them stays as it is; with it, all goes on.

    Failed when the results were made anew, and when each part looked into its own folder only.
    """

    def train(options, folder):
        outputs.open_folder(folder, options, "practical")
        return fake(options, folder)

    def run(resume):
        each = [variant(title, drop_rate=0.1 * i, resume=resume) for i, title in enumerate(variants)]
        parts.run("practical", each, seeds, tmp_path / "out", train)

    def refused():
        before = contents(tmp_path / "out")
        with pytest.raises(ValueError, match="go on with --resume"):
            run(resume=False)
        assert contents(tmp_path / "out") == before

    run(resume=False)
    refused()
    if len(variants) > 1 or seeds:
        (tmp_path / "out" / "results.json").unlink()
        refused()
        shutil.rmtree(min(path for path in (tmp_path / "out").iterdir() if path.is_dir()))
        refused()
    run(resume=True)


def test_checkpoints_are_not_removed_unasked(tmp_path, monkeypatch, capsys):
    """Of a run that has no results yet, too. Failed when the same command without --resume removed them."""
    saved = tmp_path / "out" / "checkpoints" / "FedAvg" / "7"
    saved.mkdir(parents=True)
    for main in (practical, faulty.main):
        with pytest.raises(SystemExit) as stopped:
            command(monkeypatch, main, *SHORT, "--methods", "FedAvg", "--out", tmp_path / "out")
        assert stopped.value.code == 2 and "go on with --resume" in capsys.readouterr().err
    assert saved.exists()


def test_every_method_has_a_name_in_the_settings():
    """In the order of the tables. Failed with FedRecon left out."""
    task = fedamp_jax.models.mlp(2, hidden=(4,), shape=(3,))
    made = common.make_algorithms("practical", variant().options, small(), task)
    assert tuple(made) == settings.METHODS


def other_run(tmp_path):
    fake(common.finish(common.Options(rounds=7), "practical"), tmp_path / "other")
    return tmp_path / "other"


def other_files(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    return tmp_path / "mine"


def no_json(tmp_path):
    (tmp_path / "x.json").write_text("{")
    return tmp_path / "x.json"


def without_versions(tmp_path):
    content = {"experiment": "practical", "settings": {}}
    (tmp_path / "old.json").write_text(json.dumps(content))
    return tmp_path / "old.json"


BAD = {
    "no methods": (practical, ("--methods",), "--methods needs at least one value"),
    "no drop rates": (practical, ("--drop-rate",), "--drop-rate needs at least one value"),
    "no degrees": (degrees.main, ("--degrees",), "--degrees needs at least one value"),
    "no attacks": (faulty.main, ("--attacks",), "--attacks needs at least one value"),
    "no CIFAR-10 groups": (practical, ("--dataset", "cifar10", "--data-dir", "/nowhere"), "has no groups"),
    "no groups of faulty": (faulty.main, ("--dataset", "cifar10", "--data-dir", "/nowhere"), "experiments/iid.py"),
    "sweep of seeds": (practical, ("--sigma-sweep", "--seeds", "0", "1"), "--sigma-sweep is of one seed"),
    "offload and devices": (practical, ("--offload", "--devices", "2"), "--offload is for one device: leave out"),
    "drop rate twice": (practical, ("--drop-rate", "0.1", "0.1"), "must differ, got 10% dropped, 10% dropped"),
    "out is a file": (practical, ("--quick", "--out", no_json), "is a file; give a folder"),
    "out is in a file": (practical, ("--quick", "--out", lambda p: no_json(p) / "a" / "b"), "x.json is a file"),
    "paper of PFLEGO": (degrees.main, ("--methods", "paper"), "'all', got 'paper'"),
    "paper of variants": (ablation.main, ("--methods", "paper"), "'all', got 'paper'"),
    "no clients": (degrees.main, ("--clients", "0"), "clients must be at least 1"),
    "turned digits": (omniglot.main, ("--rotations", "pooled"), "--rotations pooled is for --dataset omniglot"),
    "same shares": (faulty.main, ("--shares", "0.1", "0.12"), "--shares 0.1 and 0.12 are 2 of 20 clients both"),
    "share of nobody": (faulty.main, ("--shares", "0.01"), "--shares 0.01 is none of 20 clients"),
    "other Ks": (convergence.main, ("--out", other_run), "experiment: 'practical' there, 'convergence' now"),
    "lacking versions": (tables.main, (without_versions,), "old.json is not one of our result files: it has no"),
    "unknown method": (practical, ("--methods", "FedAPM"), "did you mean 'fedamp'"),
    "drop rate 1": (practical, ("--drop-rate", "1.0"), "drop_rate must be in [0, 1)"),
    "no rounds": (practical, ("--rounds", "0"), "rounds must be at least 1"),
    "no data": (practical, ("--dataset", "mnist", "--data-dir", "/nowhere"), "/nowhere/mnist.npz"),
    "other run": (practical, ("--quick", "--methods", "FedAvg", "--out", other_run), "rounds: 7 there, 3 now"),
    "other files": (practical, ("--quick", "--methods", "FedAvg", "--out", other_files), "holds other files"),
    "seed twice": (practical, ("--seeds", "1", "1"), "seeds must differ"),
    "no method of PFLEGO": (degrees.main, ("--methods", "FedAMP"), "methods must be one of"),
    "tau 1": (degrees.main, ("--tau", "1"), "tau must be at least 2"),
    "too many clients": (degrees.main, ("--degrees", "none", "--clients", "400"), "fewer clients"),
    "no omniglot": (omniglot.main, ("--dataset", "omniglot", "--data-dir", "/nowhere"), "/nowhere/omniglot.npz"),
    "one K": (convergence.main, ("--rounds", "10"), "two values of K"),
    "no result": (tables.main, ("/nowhere",), "/nowhere does not exist"),
    "no JSON": (tables.main, (no_json,), "is no JSON"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_told_in_words(case, tmp_path, monkeypatch, capsys):
    """Exit code 2 and a message that says what is wrong, no traceback; nothing is left behind.

    Failed when FileNotFoundError came through, and when `--rounds 0` meant the default.
    """
    main, arguments, message = BAD[case]
    arguments = [a(tmp_path) if callable(a) else a for a in arguments]
    if "--out" not in arguments and main is not tables.main:
        arguments += ["--out", tmp_path / "out"]
    with pytest.raises(SystemExit) as exit_:
        command(monkeypatch, main, *arguments)
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
