"""Small runs of the experiments from their command lines: several seeds and settings, resuming, bad input."""

import json
import shutil

import ablation
import convergence
import faulty
import jax
import jax.numpy as jnp
import leads
import numpy as np
import pytest
import sigma_sweep
import tables

import fedamp_jax
from fedamp_jax import Placement, analysis
from fedamp_jax.algorithms.registry import METHODS
from fedamp_jax.experiments import fedamp_paper, paper_values
from fedamp_jax.experiments.catalogue import EXPERIMENTS
from fedamp_jax.placement import InHostMemory, OnMesh, client_mesh
from fedamp_jax.report import combine, figures, files, styles
from fedamp_jax.runner import compare, grid, machine, provenance, run_folder, train
from fedamp_jax.runner.experiment import judged
from fedamp_jax.runner.options import Machine, Options, Training
from tests.registry import rows
from tests.small_experiments import command, main_of, options_of, parsed, practical, read, small_federation, tiny

SHORT = ("--rounds", "2", "--epochs", "1")


def fake(options, folder):
    """A run that takes no time: accuracies are a function of seed and drop rate."""
    schedule = options.schedule
    base = 50.0 + schedule.seed - 10 * schedule.drop_rate
    accuracy = base + np.arange(8.0).reshape(2, 4)
    entry = {
        **analysis.accuracy_summary(accuracy, [1, 2]), "loss": [1.0, 0.5], "seconds": 2.0, "first_round_seconds": 1.5,
        "seconds_per_round": 0.5, "rejected": {"3": 1}, "paper": None, "in_group_weight": [0.5, 0.6],
        "ari": [None, 1.0], "xi": (np.ones((4, 4)) / 4 + schedule.seed * np.eye(4)).tolist(),
    }  # fmt: skip
    head = {**provenance.describe("practical", options), "clients": 4, "groups": [0, 0, 1, 1]}
    results = {**head, "chance_in_group_weight": 1 / 3, "methods": {"FedAMP": entry}, "wilcoxon": {}}
    files.write_json(results, folder / "results.json")
    return results


def variant(title="", **changes):
    return grid.Variant(title, options_of("practical", "--quick").replace(**changes))


def test_several_seeds_are_averaged(tmp_path):
    """Mean and sample standard deviation over seeds, of numbers, curves and clients.

    Failed with the population's deviation (n), with the last seed's entry in place of the mean, and with the BMTA of
    the mean curve.
    """
    result = grid.run("practical", [variant()], (0, 2, 7), tmp_path / "out", fake)
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


def test_the_spread_of_several_seeds(tmp_path):
    """Of curves in every round, and the mean of the weights of earlier rounds. Failed with the population's deviation,
    and with weights of clients in different groups, which have no mean.
    """

    def with_history(options, folder):
        results = fake(options, folder)
        xi = np.full((2, 4, 4), 1.0 + options.schedule.seed).tolist()
        kept = {"rounds": [1, 2], "xi": xi, "distances": np.full((2, 6), 1.0 + options.schedule.seed).tolist()}
        results["methods"]["FedAMP"]["attention"] = kept
        return {**results, "examples": [5, 6, 7, options.schedule.seed]}

    combined = grid.run("practical", [variant()], (0, 2), tmp_path / "out", with_history)
    entry = combined["methods"]["FedAMP"]
    assert entry["mean_accuracy_std"] == pytest.approx([2**0.5] * 2) and entry["loss_std"] == [0.0, 0.0]
    assert np.unique(entry["attention"]["xi"]) == 2.0 and np.unique(entry["attention"]["distances"]) == 2.0
    assert combined["examples"] is None and "mean of 2 seeds" in (tmp_path / "out" / "report.html").read_text()
    others = [with_history(variant(seed=seed).options, tmp_path / str(seed)) for seed in (0, 2)]
    others[1]["groups"] = [0, 1, 1, 0]
    assert combine.combine(others, (0, 2))["methods"]["FedAMP"]["attention"] is None


def test_several_settings_become_panels(tmp_path):
    """Each setting has a folder and a panel; a single setting with a single seed is written to the folder itself.

    Failed when every variant was trained with the first one's options, and when a summary kept xi.
    """
    variants = [variant("10% dropped", drop_rate=0.1), variant("50% dropped", drop_rate=0.5)]
    grid.run("practical", variants, (), tmp_path / "out", fake)
    summary = read(tmp_path / "out")
    assert summary["settings"]["drop_rate"] == [0.1, 0.5]
    found = {title: part["methods"]["FedAMP"] for title, part in summary["parts"].items()}
    assert found["10% dropped"]["bmta"] - found["50% dropped"]["bmta"] == pytest.approx(4.0)
    assert found["10% dropped"]["xi"] is None
    assert all((tmp_path / "out" / f"panels.{kind}").stat().st_size > 5000 for kind in figures.FORMATS)
    page = (tmp_path / "out" / "report.html").read_text()
    assert 'href="10-dropped/report.html"' in page and "drop_rate" in page
    assert (tmp_path / "out" / "10-dropped" / "results.json").exists()
    figure = figures.panels(summary)
    assert [axes.get_title() for axes in figure.axes] == list(summary["parts"])
    assert len({axes.get_ylim() for axes in figure.axes}) == 1
    grid.run("practical", [variant()], (), tmp_path / "plain", fake)
    assert "parts" not in read(tmp_path / "plain") and not list((tmp_path / "plain").glob("seed*"))


@pytest.mark.slow
def test_a_folder_of_another_summary_is_refused(tmp_path):
    """Other drop rates, or other seeds, in the same folder are another run.

    Failed when only the folders of single runs were compared: without the check of settings, and without that of seeds.
    """
    low, high, other = (variant(f"{rate:.0%} dropped", drop_rate=rate, resume=True) for rate in (0.1, 0.5, 0.3))
    for name, mine, theirs in (("a", ([low, high], ()), ([low, other], ())), ("b", ([low], (0, 1)), ([low], (0, 2)))):
        for _ in range(2):
            grid.run("practical", *mine, tmp_path / name, fake)
        with pytest.raises(ValueError, match="holds another run"):
            grid.run("practical", *theirs, tmp_path / name, fake)
    with pytest.raises(ValueError, match="seeds must differ"):
        grid.run("practical", [low], (0, 0), tmp_path / "new", fake)


def test_drop_rates_that_hardly_differ():
    """Each has its own title. Failed with titles in whole percent, which were refused as given twice."""
    rates = (0.1, 0.101, 0.104, 0.07)
    variants = parsed("practical", "--drop-rate", *rates).variants
    assert [v.title for v in variants] == ["10% dropped", "10.1% dropped", "10.4% dropped", "7% dropped"]
    assert tables._conditions(variants[1].options.flat()) == "10.1% dropped"


@pytest.mark.slow
def test_practical_with_drop_rates_and_random_epochs(tmp_path, monkeypatch):
    """Two drop rates from the command line; the paper's values are shown only for the paper's settings.

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
    assert fedamp_paper.paper(options_of("practical", "--dataset", "mnist", "--drop-rate", 0.3)) == {}
    assert fedamp_paper.paper(options_of("practical", "--dataset", "mnist"))["FedAMP"] == 97.59


def test_the_width_of_resnet18():
    """It reaches the model, keeps a run out of the paper's tables, and is refused for other models.

    Failed with the default's widths, and with a run of 16 channels beside the paper's numbers.
    """

    def of(*words):
        return options_of("practical", "--dataset", "cifar100", *words)

    narrow, plain, quick = of("--width", 16), of(), of("--quick")
    federation = fedamp_jax.data.Federation(*[fedamp_jax.data.from_lists([np.zeros((2, 8, 8, 3))], [[0, 4]])] * 2, None)
    shapes = jax.eval_shape(fedamp_paper.model(narrow, federation).init, jax.random.key(0)).params
    widths = {leaf.shape[-1] for leaf in jax.tree.leaves(shapes) if leaf.ndim == 4}
    assert widths == {16, 32, 64, 128} and quick.training.width == fedamp_paper.QUICK_WIDTH
    assert paper_values.as_in_tables(plain.flat()) and not paper_values.as_in_tables(narrow.flat())
    assert not paper_values.as_in_tables(of("--holdout-clients", 3).flat())
    with pytest.raises(ValueError, match="--width is for --model resnet18, not for cnn"):
        of("--width", 16, "--model", "cnn")


def test_options_of_local_training():
    """They reach the solver, and a run with them is not in the paper's tables.

    Failed when `keep_optimizer` or `optimizer` was not passed on, and when only the drop rate was checked.
    """
    own = {
        "optimizer": "sgd", "learning_rate": 0.5, "epochs_range": (1, 3), "batch_size": 7, "keep_optimizer": True,
    }  # fmt: skip
    solver = Training(**own).solver()
    assert (solver.epochs, solver.batch_size, solver.keep_optimizer) == ((1, 3), 7, True)
    step, _ = solver.optimizer.update(np.full(2, 3.0), solver.optimizer.init(np.ones(2)))
    np.testing.assert_allclose(step, -1.5)  # SGD's; Adam's first step is -0.5
    assert paper_values.as_in_tables(Options().flat())
    assert not any(
        paper_values.as_in_tables(Options().replace(**o).flat()) for o in ({"epochs": 5}, {"optimizer": "sgd"})
    )


def test_placements():
    """All devices, those of --devices, one, or the host's memory; --chunk reaches each.

    Failed when --chunk was lost for several devices, and when --offload spread the clients as well.
    """

    def placed(**changes):
        return machine.placement_for(Machine(chunk=3, **changes))

    assert placed(devices=1) == Placement(chunk=3)
    assert placed() == OnMesh(mesh=client_mesh(8), chunk=3) and placed(devices=4).devices == 4
    assert placed(offload=True) == InHostMemory(device=jax.devices()[0], chunk=3)


@pytest.mark.slow
def test_offload_on_the_command_line(tmp_path, monkeypatch, capsys):
    """`--offload` reports what it takes, and gives the same results in a folder of the same name."""
    results = []
    for name, options in (("here", ()), ("there", ("--offload", "--chunk", "5"))):
        arguments = ("--rounds", "1", "--epochs", "1", "--methods", "Separate", "--out", tmp_path / name, *options)
        command(monkeypatch, practical, *arguments)
        results.append(read(tmp_path / name))
        assert ("on the device at a time" in capsys.readouterr().out) == bool(options)
    here, there = results
    assert here["settings"] == there["settings"]
    np.testing.assert_allclose(here["methods"]["Separate"]["loss"], there["methods"]["Separate"]["loss"], rtol=1e-5)


def test_estimates_are_printed_before_a_run_on_several_devices(capsys):
    """Failed when only offloading reported what it takes."""
    task = fedamp_jax.models.mlp(2, hidden=(4,), shape=(3,))
    algorithm = fedamp_jax.separate(task, Training().solver())
    machine.print_estimate(algorithm, small_federation().train, OnMesh(mesh=client_mesh(2)))
    assert "2 device(s) of 2 client(s)" in capsys.readouterr().out


@pytest.mark.slow
def test_a_sweep_is_made_of_runs(monkeypatch):
    """A sigma of the sweep gives what `fedamp_jax.run` gives, with clients that drop out.

    Failed with the same clients in every round, and with keys of its own in place of those of `run`.
    """
    federation, grid_of = small_federation(), {"FedAMP": (0.5, 50.0), "HeurFedAMP": (10.0,)}
    monkeypatch.setattr(paper_values, "SIGMA_GRID", grid_of)
    words = ("--rounds", 3, "--epochs", 2, "--learning-rate", 0.05, "--drop-rate", 0.3)
    own = options_of("practical", *words)
    task, solver = fedamp_jax.models.mlp(2, hidden=(4,), shape=(3,)), own.training.solver()
    rows = sigma_sweep.sweep_sigma(own, federation, task, solver)
    assert {name: tuple(row["sigma"]) for name, row in rows.items()} == grid_of
    algorithm = fedamp_jax.fedamp(task, solver, sigma=50.0, self_weight=0.5)
    share = fedamp_jax.Participation(drop_rate=0.3)
    plain = fedamp_jax.run(task, algorithm, *federation[:2], rounds=3, participation=share, progress=False)
    assert rows["FedAMP"]["bmta"][1] == pytest.approx(100 * plain.accuracy.mean(axis=1).max())
    found = analysis.in_group_weight(plain.xi, federation.groups)
    np.testing.assert_allclose(rows["FedAMP"]["in_group_weight"][1], found, rtol=1e-4)


def test_results_list_clients_by_id():
    """Whatever the order of the rows: accuracies, weights in both directions, and which clients were rejected.

    Failed when xi's columns stayed where they were.
    """
    xi = np.arange(9.0).reshape(3, 3)
    kept = {"snapshot_xi": np.stack([xi, -xi]), "snapshot_distances": np.stack([xi, 2 * xi])}
    rows = fedamp_jax.Run(
        None, metrics={"accuracy": np.array([[0.2, 0.0, 0.1]])}, rejected=np.array([2, 0, 1]), xi=xi, **kept
    )
    found = train.by_id(rows, np.array([2, 0, 1]))
    assert np.array_equal(found.snapshot_xi[1], -found.xi) and np.array_equal(found.snapshot_distances[1], 2 * found.xi)
    assert found.accuracy.tolist() == [[0.0, 0.1, 0.2]] and found.rejected.tolist() == [0, 1, 2]
    assert found.xi.tolist() == [[4, 5, 3], [7, 8, 6], [1, 2, 0]]
    clients = fedamp_paper.clients(options_of("practical"))
    assert clients.train.id[1] != 1 and clients.groups[1] == clients.train.id[1] // 4


@pytest.mark.slow
def test_resume_trains_what_is_missing(tmp_path, monkeypatch):
    """Interrupted in the second part: --resume trains that one only, and the result is that of an uninterrupted run.

    Failed when every part was trained again, and when a part's finished methods were taken from another part.
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
        command(monkeypatch, tiny, *arguments, tmp_path / "a")
    assert stopped.value.code == 130
    command(monkeypatch, tiny, *arguments, tmp_path / "a", "--resume")
    assert calls == [0, 1, 1]
    entry = read(tmp_path / "a")["methods"]["Separate"]
    singles = [read(tmp_path / "a" / f"seed={s}")["methods"]["Separate"] for s in (0, 1)]
    assert singles[0]["accuracy"] != singles[1]["accuracy"]
    assert entry["bmta"] == pytest.approx(np.mean([s["bmta"] for s in singles]))


def contents(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variants", "seeds"), [([""], ()), ([""], (0, 1)), (["a", "b"], ()), (["a", "b"], (0, 1))],
    ids=["one run", "seeds", "settings", "settings and seeds"],
)  # fmt: skip
def test_nothing_is_trained_again_without_resume(variants, seeds, tmp_path):
    """Without --resume, a folder that holds results or some of their parts stays as it is; with it, the run continues.

    Failed when the results were overwritten, and when each part checked its own folder only.
    """

    def train(options, folder):
        run_folder.open_folder(folder, options, "practical")
        return fake(options, folder)

    def run(resume):
        each = [variant(title, drop_rate=0.1 * i, resume=resume) for i, title in enumerate(variants)]
        grid.run("practical", each, seeds, tmp_path / "out", train)

    def refused():
        before = contents(tmp_path / "out")
        with pytest.raises(ValueError, match="continue with --resume"):
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


def test_checkpoints_are_not_removed_without_resume(tmp_path, monkeypatch, capsys):
    """Even if there are no results yet. Failed when the same command without --resume removed them."""
    saved = tmp_path / "out" / "checkpoints" / "FedAvg" / "7"
    saved.mkdir(parents=True)
    for main in (practical, faulty.main):
        with pytest.raises(SystemExit) as stopped:
            command(monkeypatch, main, *SHORT, "--methods", "FedAvg", "--out", tmp_path / "out")
        assert stopped.value.code == 2 and "continue with --resume" in capsys.readouterr().err
    assert saved.exists()


def test_every_method_is_in_the_list_of_methods():
    """In the order of the tables; FedBN, for which not every model will do, if it is named. Failed with FedRecon left
    out.
    """
    task = fedamp_jax.models.mlp(2, hidden=(4,), shape=(3,))
    names, every = (
        EXPERIMENTS["practical"].chosen(options_of("practical", *words))
        for words in ((), ("--methods", "all", "fedbn"))
    )
    made = fedamp_paper.methods(variant().options, small_federation(), task, names)
    assert list(made) == [name for name in METHODS if name != "FedBN"]
    assert every == list(METHODS) and set(METHODS) == set(styles.KNOWN)


def other_run(tmp_path):
    fake(options_of("practical", "--rounds", 7), tmp_path / "other")
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


def some_file(tmp_path):
    (tmp_path / "file").write_text("mine")
    return tmp_path / "file"


BAD = {
    "one optimizer on devices": (
        main_of(leads.EXPERIMENT),
        ("--devices", "2"),
        "one-optimizer trains one client after the other",
    ),
    "negative seed": (practical, ("--seeds", "0", "-1"), "--seeds must be at least 0"),
    "nobody in the second panel": (practical, ("--drop-rate", "0", "0.99"), "leaves none of 20"),
    "nobody of 100": (main_of("degrees"), ("--participation", "1", "0.01", "--drop-rate", "0.9"), "leaves none of 20"),
    "norm without layers": (practical, ("--norm", "group"), "--norm is for --model resnet18, not for mlp"),
    "alpha of shards": (
        main_of("dirichlet"),
        ("--split", "shards", "--alpha", "7"),
        "--alpha 7 is for --split dirichlet",
    ),
    "note without slim": (tables.main, (other_run, "--note", "x"), "--note is for --slim"),
    "write into a folder": (tables.main, (other_run, "--write", lambda p: p), "is a folder; give the name of a file"),
    "slim into a file": (tables.main, (other_run, "--slim", some_file), "is a file; give a folder"),
    "page in a file": (compare.main, (other_run, other_run, "--out", lambda p: some_file(p) / "x.html"), "is a file"),
    "no methods": (practical, ("--methods",), "--methods needs at least one value"),
    "no drop rates": (practical, ("--drop-rate",), "--drop-rate needs at least one value"),
    "no degrees": (main_of("degrees"), ("--degree",), "--degree needs at least one value"),
    "no attacks": (faulty.main, ("--attacks",), "--attacks needs at least one value"),
    "no CIFAR-10 groups": (practical, ("--dataset", "cifar10", "--data-dir", "/nowhere"), "has no groups"),
    "no groups of faulty": (faulty.main, ("--dataset", "cifar10", "--data-dir", "/nowhere"), "experiments/iid.py"),
    "offload and devices": (practical, ("--offload", "--devices", "2"), "--offload is for one device: leave out"),
    "drop rate twice": (practical, ("--drop-rate", "0.1", "0.1"), "must differ, got 10% dropped, 10% dropped"),
    "out is a file": (practical, ("--quick", "--out", no_json), "is a file; give a folder"),
    "out is in a file": (practical, ("--quick", "--out", lambda p: no_json(p) / "a" / "b"), "x.json is a file"),
    "paper of PFLEGO": (main_of("degrees"), ("--methods", "paper"), "--methods: there is no paper;"),
    "paper of variants": (main_of(ablation.EXPERIMENT), ("--methods", "paper"), "--methods: there is no paper;"),
    "no clients": (main_of("degrees"), ("--clients", "0"), "--clients must be at least 1"),
    "rotated digits": (main_of("omniglot"), ("--rotations", "pooled"), "--rotations pooled is for --dataset omniglot"),
    "same shares": (faulty.main, ("--shares", "0.1", "0.12"), "--shares 0.1 and 0.12 are both 2 of 20 clients"),
    "share of no client": (faulty.main, ("--shares", "0.01"), "--shares 0.01 is none of 20 clients"),
    "other Ks": (convergence.main, ("--out", other_run), "experiment: 'practical' there, 'convergence' now"),
    "lacking versions": (tables.main, (without_versions,), "old.json is not one of our result files: it has no"),
    "unknown method": (practical, ("--methods", "FedAPM"), "there is no FedAPM (did you mean FedAMP?);"),
    "drop rate 1": (practical, ("--drop-rate", "1.0"), "--drop-rate must be in [0, 1)"),
    "no rounds": (practical, ("--rounds", "0"), "--rounds must be at least 1"),
    "no data": (practical, ("--dataset", "mnist", "--data-dir", "/nowhere"), "/nowhere/mnist.npz"),
    "other run": (practical, ("--quick", "--methods", "FedAvg", "--out", other_run), "rounds: 7 there, 3 now"),
    "other files": (practical, ("--quick", "--methods", "FedAvg", "--out", other_files), "holds other files"),
    "seed twice": (practical, ("--seeds", "1", "1"), "--seeds must differ"),
    "no examples in a step": (practical, ("--batch-size", "0"), "--batch-size must be at least 1"),
    "epochs backwards": (practical, ("--epochs-range", "5", "2"), "--epochs-range needs LOW HIGH, got 5 2"),
    "no folder": (practical, ("--out", " "), "--out needs the name of a folder"),
    "infinite sigma": (practical, ("--sigma", "inf"), "--sigma must be finite"),
    "quick and backwards": (practical, ("--quick", "--epochs-range", "5", "2"), "--epochs-range needs LOW HIGH"),
    "more devices than cores": (practical, ("--devices", "99"), "--devices 99: this CPU has"),
    "no chunk": (practical, ("--chunk", "0"), "--chunk must be at least 1"),
    "sigma 0": (practical, ("--sigma", "0"), "--sigma must be greater than 0"),
    "nobody takes part": (practical, ("--participation", "0.05", "--drop-rate", "0.6"), "leaves none of 20"),
    "no method of PFLEGO": (main_of("degrees"), ("--methods", "FedAMP", "Ditto"), "there is no FedAMP and no Ditto"),
    "tau 1": (main_of("degrees"), ("--tau", "1"), "--tau must be at least 2"),
    "too many clients": (main_of("degrees"), ("--degree", "none", "--clients", "400"), "fewer clients"),
    "no omniglot": (main_of("omniglot"), ("--dataset", "omniglot", "--data-dir", "/nowhere"), "/nowhere/omniglot.npz"),
    "one K": (convergence.main, ("--rounds", "10"), "two values of K"),
    "no result": (tables.main, ("/nowhere",), "/nowhere does not exist"),
    "no JSON": (tables.main, (no_json,), "is not valid JSON"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gives_a_message(case, tmp_path, monkeypatch, capsys):
    """Exit code 2 and a message that says what is wrong, no traceback; nothing is written.

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


def test_self_weights():
    """Of groups, of sets of classes, of everybody; others hear about 8, as with --sigma auto.

    Failed when clients without groups listened to nobody, so that FedAMP was training alone.
    """
    clients = small_federation()
    clients = clients._replace(train=clients.train._replace(y=clients.train.y.at[rows(clients.train, 3)].set(0)))
    alone = clients._replace(groups=None)
    assert paper_values.self_weights("practical", clients).tolist() == [0.5] * 4
    np.testing.assert_allclose(paper_values.self_weights("pathological", alone), [1 / 3, 1 / 3, 1 / 3, 1])
    assert paper_values.self_weights("iid", alone).tolist() == [0.25] * 4
    np.testing.assert_allclose(paper_values.self_weights("dirichlet", alone), [1 / 9] * 4)


def test_clients_of_one_example_cannot_be_validated(capsys):
    """They are left out, by name. Failed with an accuracy of NaN after the training."""
    clients = small_federation()
    clients = clients._replace(train=clients.train._replace(size=jnp.array([6, 1, 6, 6])))
    found = judged(Options().replace(validation_fraction=0.5), clients)
    assert "leaves out clients with one training example: 1" in capsys.readouterr().out
    assert found.train.id.tolist() == [0, 2, 3] and found.groups.tolist() == [0, 1, 1]
    assert found.train.size.tolist() == found.test.size.tolist() == [3, 3, 3]


@pytest.mark.slow
def test_a_finished_run_keeps_its_origin(tmp_path, monkeypatch):
    """Of one run and of several settings: resuming trains nothing. Failed when the results got a new date."""
    for name, extra in (("one", ()), ("several", ("--drop-rate", "0", "0.2"))):
        words = (*SHORT, "--methods", "Separate", *extra, "--out", tmp_path / name)
        command(monkeypatch, tiny, *words)
        for file in (tmp_path / name).rglob("results.json"):
            file.write_text(file.read_text().replace('"created": "20', '"created": "19'))
        before = read(tmp_path / name)
        command(monkeypatch, tiny, *words, "--resume")
        assert before["created"].startswith("19") and read(tmp_path / name) == before


def test_the_papers_values_are_for_its_settings():
    """Failed with the paper's values beside 20 clients, shared labels, rotated test images and other local steps."""
    own = options_of("practical", "--dataset", "mnist").flat()
    assert paper_values.bmta("practical", "mnist", own)["FedAMP"] == 97.59
    assert paper_values.bmta("practical", "mnist", {**own, "epochs": 1}) == {}
    own = options_of("degrees", "--dataset", "mnist", "--degree", "high").flat()
    assert paper_values.as_in_pflego_tables(own)
    for change in ({"clients": 20}, {"labels": "global"}, {"rotations": "pooled"}):
        assert not paper_values.as_in_pflego_tables({**own, **change})
    assert paper_values.as_in_pflego_tables({**own, "clients": 20, "dataset": "digits"})
