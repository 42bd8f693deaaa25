"""Trees of parameters, what the package's names stand for, and what the server computes from stacked trees."""

import ast
import importlib
import inspect
import pkgutil
import re
import types
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedamp_jax
from fedamp_jax import Solver, Task, Variables, trees
from fedamp_jax.engine import server
from tests.registry import federation, run_rounds, tiny_task

KEY = jax.random.key(4)
ROOT = Path(__file__).parent.parent


def test_head_mask_names_whole_path_parts():
    """`"head"` is not the beginning of `"header"`. Failed with `str.startswith` alone."""
    params = {"head": {"kernel": 0.0}, "header": {"kernel": 0.0}, "body": 0.0}
    task = tiny_task()
    assert trees.head_mask(task, params) == {"head": {"kernel": True}, "header": {"kernel": False}, "body": False}
    for head in (("nothing",), ("head", "header", "body")):
        with pytest.raises(ValueError, match=r"must select some and not all .*there are: body, head/kernel"):
            trees.head_mask(task._replace(head=head), params)


def test_partition_and_combine():
    """Back and forth, and None trains everything. Failed when a frozen leaf was lost."""
    params = tiny_task().init(KEY).params
    mask = trees.head_mask(tiny_task(), params)
    trained, frozen = trees.partition(params, mask)
    assert trained["body"] == {"kernel": None, "bias": None} == frozen["head"]
    chex.assert_trees_all_equal(trees.combine(trained, frozen), params)
    everything, nothing = trees.partition(params, None)
    chex.assert_trees_all_equal(everything, params)
    assert jax.tree.leaves(nothing) == []


def test_where_selects():
    """A NaN on the other side does not spread. Failed with a sum of products."""
    a, b = {"w": jnp.array([[1.0], [2.0]])}, {"w": jnp.array([[jnp.nan], [4.0]])}
    chex.assert_trees_all_equal(trees.where(jnp.array([True, False]), a, b), {"w": jnp.array([[1.0], [4.0]])})
    chex.assert_trees_all_equal(trees.where(jnp.array(True), a, b), a)


# --- the names of the package -----------------------------------------------------------------------------------------


def modules():
    """All modules of the package, by name."""
    found = pkgutil.walk_packages(fedamp_jax.__path__, "fedamp_jax.")
    return [m.name for m in found if not m.name.startswith("fedamp_jax.experiments") and "__main__" not in m.name]


@pytest.mark.parametrize("name", modules())
def test_no_function_shadows_its_module(name):
    """A module is an attribute of its package, so that `fedamp_jax.algorithms.pflego.head_steps` is there.

    Failed when `fedamp_jax.algorithms` exported the factories, which have their modules' names.
    """
    if name.endswith("flare_app"):
        pytest.importorskip("nvflare")
    module = importlib.import_module(name)
    package, _, own = name.rpartition(".")
    found = getattr(importlib.import_module(package), own)
    # The top level exports the function `run` and the like, none of which is a module's name there.
    assert isinstance(found, types.ModuleType) and found is module


def test_functions_of_a_method_can_be_reached():
    """Failed when `fedamp_jax.algorithms.pflego` was the factory."""
    assert fedamp_jax.algorithms.pflego.head_steps.__module__ == "fedamp_jax.algorithms.pflego"
    assert fedamp_jax.algorithms.fedamp.FedAMPState._fields == ("clients", "trained", "round", "memory")


def test_public_names_are_there():
    """And each only once. Failed with a name that was gone."""
    assert len(set(fedamp_jax.__all__)) == len(fedamp_jax.__all__)
    for name in fedamp_jax.__all__:
        assert getattr(fedamp_jax, name) is not None, name


@pytest.mark.parametrize("name", ["fedamp_jax", "fedamp_jax.engine", "fedamp_jax.data", "fedamp_jax.models"])
def test_functions_take_the_key_last(name):
    """Behind their other required arguments; methods of an `Algorithm` take it first.

    Failed for `join(algorithm, key, state, ...)` and nine functions of the engine.
    """
    module = importlib.import_module(name)
    for public in module.__all__:
        function = getattr(module, public)
        if inspect.isfunction(function):
            given = inspect.signature(function).parameters.values()
            required = [p.name for p in given if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
            assert not {"key", "keys"} & {*required[:-1]}, f"{public}({', '.join(required)})"


def imported_from(text):
    """`module: names` of all `from fedamp_jax... import ...` in a program, anywhere in it."""
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    return [(node.module, alias.name) for node in found for alias in node.names if node.module.startswith("fedamp_jax")]


@pytest.mark.parametrize("method", sorted(path.stem for path in (ROOT / "fedamp_jax/algorithms").glob("*.py")))
def test_methods_import_the_public_engine(method):
    """What a method of the package needs, an author of another one finds in `fedamp_jax.engine`.

    Failed for `share_of`, which PFLEGO took from `engine.minibatches`.
    """
    for module, name in imported_from((ROOT / f"fedamp_jax/algorithms/{method}.py").read_text()):
        assert not module.startswith("fedamp_jax.engine."), f"{name} of {module}"
        assert module != "fedamp_jax.engine" or name in fedamp_jax.engine.__all__, name


def test_the_guide_for_authors_imports_public_names():
    """Failed for `fedamp_jax.checks.check_number`."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/write_a_method.md").read_text(), re.DOTALL)
    imported = imported_from("\n".join(blocks))
    assert ("fedamp_jax.engine", "for_each_client") in imported
    assert {module for module, _ in imported} == {"fedamp_jax", "fedamp_jax.engine"}
    assert {name for module, name in imported if module == "fedamp_jax.engine"} <= {*fedamp_jax.engine.__all__}


# --- the server -------------------------------------------------------------------------------------------------------


def test_a_weighted_mean():
    """And without any weight it is what it would have been otherwise. Failed with a division by the sum of weights."""
    tree = {"w": jnp.array([[1.0, 2.0], [3.0, 4.0], [5.0, 9.0]])}
    otherwise = {"w": jnp.array([7.0, 7.0])}
    mean = server.weighted_mean(jnp.array([1.0, 3.0, 0.0]), tree, otherwise)
    np.testing.assert_allclose(mean["w"], [2.5, 3.5])
    chex.assert_trees_all_equal(server.weighted_mean(jnp.zeros(3), tree, otherwise), otherwise)


def test_who_is_offline_or_rejected_has_no_weight():
    """Failed with the sizes of all clients."""
    data = federation()._replace(online=jnp.arange(8) != 2)
    info = fedamp_jax.Info(jnp.zeros(8), jnp.ones(8, jnp.int32), jnp.arange(8) == 5)
    assert server.sample_weights(data, info).tolist() == [7, 3, 0, 1, 5, 0, 4, 6]


FAMILIES = {
    "fedavg": lambda task, solver, stats: fedamp_jax.fedavg(task, solver, stats=stats),
    "fedamp": lambda task, solver, stats: fedamp_jax.fedamp(task, solver, sigma=1e9, self_weight=1 / 8, stats=stats),
    "ditto": lambda task, solver, stats: fedamp_jax.ditto(task, solver, stats=stats),
    "scaffold": lambda task, solver, stats: fedamp_jax.scaffold(task, solver, stats=stats),
    "apfl": lambda task, solver, stats: fedamp_jax.apfl(task, solver, stats=stats),
    "fedper": lambda task, solver, stats: fedamp_jax.fedper(task, solver, stats=stats),
    "pflego": lambda task, solver, stats: fedamp_jax.pflego(task, solver, stats=stats),
}


@pytest.mark.parametrize(
    "family", [n if n in ("fedamp", "fedavg") else pytest.param(n, marks=pytest.mark.slow) for n in FAMILIES]
)
def test_statistics_follow_their_policy(family):
    """`"local"`: what a client's own data made of them; `"mix"`: averages. Failed with the policies exchanged."""
    task = tiny_task()

    def loss(variables, batch, key):
        value, _ = task.loss(Variables(variables.params, {"mean": jnp.zeros(5)}), batch, key)
        mean = jnp.sum(jnp.where(batch.mask, batch.x[:, 0], 0.0)) / jnp.maximum(
            jnp.sum(batch.mask, dtype=jnp.float32), 1.0
        )
        return value, {"mean": 0.5 * variables.stats["mean"] + 0.5 * mean}

    noted = Task(lambda key: Variables(task.init(key).params, {"mean": jnp.zeros(())}), loss, task.predict)
    data = federation()._replace(size=jnp.full(8, 1, jnp.int32))  # one example each, of weight one each
    results = {}
    for policy in ("local", "mix"):
        algorithm = FAMILIES[family](noted, Solver(optax.sgd(0.0), epochs=1, batch_size=4), policy)
        state, _ = run_rounds(algorithm, data, 2)
        stats = algorithm.personalize(KEY, state, data).stats
        results[policy] = np.asarray(stats["mean"])
    own = 0.75 * np.asarray(data.x[data.start, 0])
    np.testing.assert_allclose(results["local"], own, rtol=1e-5)
    if family == "fedamp":  # mixed before training, so the last round's own share is still apart
        own = 0.5 * np.asarray(data.x[data.start, 0]) + 0.25 * float(data.x[data.start, 0].mean())
        np.testing.assert_allclose(results["mix"], own, rtol=1e-4)
    else:
        np.testing.assert_allclose(results["mix"], own.mean(), rtol=1e-4)
