"""FedPer, LG-FedAvg and FedBN as three choices of what stays with the client; and the layers that FedBN finds."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import fedamp_jax
from fedamp_jax import Solver
from fedamp_jax.models import from_linen, from_nnx
from fedamp_jax.trees import normalization_mask, path_name
from tests.registry import CLASSES, FEATURES, federation, initial, run_rounds, tiny_task

SOLVER = Solver(optax.adam(0.05), epochs=2, batch_size=4)
KEY = jax.random.key(3)


class Linen(nn.Module):
    """BatchNorm without a scale, and LayerNorm."""

    @nn.compact
    def __call__(self, x, train, mask):
        x = nn.BatchNorm(use_running_average=not train, use_scale=False)(nn.Dense(4)(x), mask=mask[:, None])
        return nn.Dense(CLASSES)(nn.LayerNorm()(x))


class Net(nnx.Module):
    """BatchNorm and a list of layers, under names of their own."""

    def __init__(self, rngs):
        self.first = nnx.Linear(FEATURES, 4, rngs=rngs)
        self.bn = nnx.BatchNorm(4, rngs=rngs)
        self.rest = nnx.List([nnx.RMSNorm(4, rngs=rngs), nnx.Linear(4, CLASSES, rngs=rngs)])

    def __call__(self, x, mask):
        x = self.bn(self.first(x), mask=mask[:, None])
        for layer in self.rest:
            x = layer(x)
        return x


def differ(variables):
    """The paths of parameters and statistics that are not the same for all clients."""
    leaves = jax.tree_util.tree_leaves_with_path(variables)
    return {path_name(path) for path, a in leaves if np.ptp(np.asarray(a), axis=0).max() > 1e-6}


LAYERS = {
    "linen": (lambda: from_linen(Linen(), (FEATURES,)),
              {"params/BatchNorm_0/bias", "params/LayerNorm_0/scale", "params/LayerNorm_0/bias",
               "stats/BatchNorm_0/mean", "stats/BatchNorm_0/var"}),
    "nnx": (lambda: from_nnx(lambda rngs: Net(rngs), (FEATURES,)),
            {"params/bn/scale", "params/bn/bias", "params/rest/0/scale", "stats/bn/mean", "stats/bn/var"}),
}  # fmt: skip


@pytest.mark.parametrize("kind", LAYERS)
def test_normalization_stays_with_the_client(kind):
    """Parameters and statistics, and nothing else. Failed with layers that are found by their names alone, which
    nnx's users give, by `scale` alone, which BatchNorm may lack, and with statistics of the others.
    """
    make, wanted = LAYERS[kind]
    task, data = make(), federation()
    algorithm = fedamp_jax.fedbn(task, SOLVER)
    state, _ = run_rounds(algorithm, data, 2)
    assert differ(jax.jit(algorithm.personalize)(KEY, state, data)) == wanted


def test_resnet18_has_its_normalization_layers():
    """All parameters but those of convolutions and the head."""
    for norm in ("batch", "group"):
        task = fedamp_jax.models.resnet18(classes=3, shape=(8, 8), widths=(2, 2, 2, 2), norm=norm)
        params = jax.eval_shape(task.init, KEY).params
        mask = jax.tree_util.tree_leaves_with_path(normalization_mask(params))
        assert {path_name(path).split("/")[-1] for path, chosen in mask if chosen} == {"scale", "bias"}
        assert all(path_name(path).split("/")[-1] == "kernel" or "head" in path_name(path) for path, chosen in mask
                   if not chosen)  # fmt: skip


def test_layers_that_are_none_are_refused():
    """Before anything compiles. Failed with FedAvg of everything for a model without normalization."""
    task = tiny_task()
    with pytest.raises(ValueError, match=r"must be normalization layers; there are: body/bias, .* layers=\("):
        fedamp_jax.fedbn(task, SOLVER)
    for layers in (("body", "bn1"), ("bod",), ("body", "head"), ()):
        with pytest.raises(ValueError, match=r"must be prefixes of some, and not all, of the parameters; there are"):
            fedamp_jax.fedbn(task, SOLVER, layers=layers)
    assert fedamp_jax.fedbn(task, SOLVER, layers="body")


def test_all_three_are_choices_of_one():
    """FedBN of the head's parameters is FedPer, of the body's LG-FedAvg. Failed with the choices turned."""
    data, task = federation(), tiny_task()
    pairs = [(fedamp_jax.fedbn(task, SOLVER, layers=("head",)), fedamp_jax.fedper(task, SOLVER)),
             (fedamp_jax.fedbn(task, SOLVER, layers=("body",)), fedamp_jax.lg_fedavg(task, SOLVER))]  # fmt: skip
    for pair in pairs:
        a, b = (jax.jit(one.personalize)(KEY, run_rounds(one, data, 2)[0], data).params for one in pair)
        jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize("method", ["fedbn", "lg_fedavg"])
@pytest.mark.slow_variants
def test_who_has_not_trained_gets_nothing_of_the_others_own(method):
    """Neither parameters nor statistics, and newcomers neither. Failed with the others' average."""
    key, everybody = jax.random.key(1), federation()  # of `run_rounds`
    algorithm = getattr(fedamp_jax, method)(LAYERS["linen"][0](), SOLVER)
    first, last = everybody.select(range(6)), everybody.select([6, 7])
    for present in (5, 6):
        state, _ = run_rounds(algorithm, first._replace(online=jnp.arange(6) < present), 1)
        joined, _ = fedamp_jax.join(algorithm, state, first, last, key)
        fresh = initial(algorithm, key, everybody)
        for found, start in zip(jax.tree.leaves((joined.own, joined.stats)), jax.tree.leaves((fresh.own, fresh.stats))):
            np.testing.assert_allclose(found[present:], start[present:], rtol=1e-6)
            assert np.abs(found[:present] - start[:present]).max() > 1e-4
