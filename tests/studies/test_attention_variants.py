"""The study of attention weights."""

import attention_variants
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedamp_jax import Placement
from fedamp_jax import attention as weights
from tests.small_experiments import command, main_of, read


def test_the_largest_gap():
    """Of a row's sorted distances; who is no edge does not count. Failed with gaps between rows that are not sorted."""
    t = jnp.array([[0.0, 9.0, 1.0, 2.0, 8.0], [9, 0, 9, 9, 9]], jnp.float32)
    t = jnp.concatenate([t, jnp.ones((3, 5), jnp.float32)])
    edges = ~jnp.eye(5, dtype=bool)
    assert attention_variants.largest_gap(t, edges)[0].tolist() == [-jnp.inf, -jnp.inf, 0, 0, -jnp.inf]
    assert attention_variants.largest_gap(t, edges)[1].tolist() == [0, -jnp.inf, 0, 0, 0]  # all equal: everybody
    online = edges & (jnp.arange(5) != 3)[None]
    assert attention_variants.largest_gap(t, online)[0].tolist() == [-jnp.inf, -jnp.inf, 0, -jnp.inf, -jnp.inf]


def test_layers_count_alike():
    """Whatever their scale. Failed with the sum of distances."""
    models = {"a": jnp.array([[0.0], [1.0], [2.0]]), "b": 1e3 * jnp.array([[0.0], [2.0], [1.0]])}
    t = attention_variants.by_layer(Placement().by_parameters(models), jnp.ones((3, 3), bool))
    np.testing.assert_allclose(t[0, 1], t[0, 2], rtol=1e-6)


def test_scores_have_the_perplexity():
    """Failed with sigma in place of 1 / sigma."""
    t = jnp.square(jnp.arange(6.0)[:, None] - jnp.arange(6.0)[None])
    edges = ~jnp.eye(6, dtype=bool)
    p = np.asarray(weights.normalize(attention_variants.softmax_of(3)(t, edges), edges, jnp.float32(0)))
    entropy = -np.sum(np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0), axis=1)
    np.testing.assert_allclose(np.exp(entropy), 3, rtol=1e-3)


@pytest.mark.slow
def test_every_variant_is_what_it_says(tmp_path, monkeypatch):
    """Failed with the groups of clients that were reordered, and with the test data in place of held-out ones."""
    command(monkeypatch, main_of(attention_variants.EXPERIMENT), "--rounds", 2, "--epochs", 1, "--out", tmp_path)
    found = read(tmp_path)
    groups = np.array(found["groups"])
    alike = groups[:, None] == groups[None]
    xi = {name: np.array(entry["xi"]) for name, entry in found["methods"].items() if entry["xi"]}
    assert set(found["methods"]) - set(xi) == {"Separate", "FedAvg-FT"}
    assert (xi["groups"][~alike] == 0).all() and (xi["groups"][alike] > 0).all()
    off = ~np.eye(20, dtype=bool)
    np.testing.assert_allclose(xi["mean"][off].reshape(20, 19), 0.75 / 19 * np.ones((20, 19)), rtol=1e-5)
    few = [name for name in xi if name.endswith("-8")] + ["mixture", "gap", "perplexity-4", "perplexity-15"]
    assert len({xi[name].tobytes() for name in few}) == len(few)  # no two are the same
    for name in xi:
        np.testing.assert_allclose(xi[name].sum(1), 1, rtol=1e-5)
        own = 1 / (int(name[5:]) + 1) if name.startswith("auto") else 0.25
        own = 1 / 20 if name.startswith("found") else own  # before clients choose
        np.testing.assert_allclose(np.diag(xi[name]), own, rtol=1e-5)
    measured = {name for name, entry in found["methods"].items() if (entry["attention"] or {}).get("distances")}
    by_number = ("perplexity", "auto", "found")
    assert measured == {"FedAMP", *(name for name in found["methods"] if name.startswith(by_number))}
    assert found["methods"]["perplexity-8-FT"]["accuracy"] != found["methods"]["perplexity-8"]["accuracy"]
    # 20 % of 30 to 70 examples are 6 to 14: no accuracy of 25 test images is a multiple of a fourteenth.
    assert all(np.isclose(a / 100 * 6 % 1, [0, 1]).any() for a in found["methods"]["mean"]["accuracy"][-4:])
    jax.config.update("jax_default_matmul_precision", None)
