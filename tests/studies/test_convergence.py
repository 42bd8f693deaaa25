"""Theorems 1 and 2: gradients, the exact prox step, bounds."""

import convergence
import jax.numpy as jnp
import numpy as np
import objective
import pytest
import scipy.optimize
from matplotlib.figure import Figure

from fedamp_jax import attention
from tests.small_experiments import command, read


def problem(seed=0):
    rng = np.random.default_rng(seed)
    return objective.Problem(objective.robust(rng, 4, 12, 3), objective.neg_exp(2.0), 0.7), rng.normal(size=(4, 3))


def test_gradients_of_equation_1():
    """Against finite differences; and Eq. 5 as the engine computes it is Eq. 3 with half the step.

    Failed without the factor 2 in Eq. 3, and with a wrong sign in the second derivative of the robust loss.
    """
    p, w = problem()
    check = scipy.optimize.approx_fprime(w.ravel(), lambda v: p.value(v.reshape(w.shape)), 1e-7)
    np.testing.assert_allclose(p.gradient(w).ravel(), check, rtol=1e-4, atol=1e-5)
    for loss in (p.loss, objective.logistic(np.random.default_rng(1), 4, 12, 3)):
        for i in range(3):
            step = 1e-6 * np.eye(3)[i]
            numeric = (loss.slope(w + step) - loss.slope(w - step)) / 2e-6
            np.testing.assert_allclose(loss.curve(w)[:, i], numeric, atol=1e-6)
        assert np.linalg.eigvalsh(loss.curve(w)).max() <= loss.smooth
    everybody = attention.edges(jnp.ones(4, bool), jnp.ones(4, bool))
    models = {"w": jnp.asarray(w, jnp.float32)}
    xi = attention.fedamp_weights(models, everybody, sigma=jnp.float32(2.0), alpha=jnp.float32(0.1))
    np.testing.assert_allclose(np.asarray(xi) @ w, w - 0.1 * 0.5 * p.pull(w), atol=1e-6)


def test_pseudo_huber_is_an_attention_function():
    """Definition 1, and convex as a function of the difference. Failed with the negative exponential, not convex."""
    of = objective.pseudo_huber(0.5)
    t = np.linspace(0, 9, 50)
    assert of.value(0.0) == 0 and (np.diff(of.value(t)) > 0).all() and (np.diff(of.slope(t)) < 0).all()
    np.testing.assert_allclose(np.gradient(of.value(t), t)[1:-1], of.slope(t)[1:-1], rtol=0.05)
    a, b = np.random.default_rng(0).normal(size=(2, 500, 3)) * 3

    def value(d):
        return of.value((d**2).sum(-1))

    assert (value((a + b) / 2) <= (value(a) + value(b)) / 2 + 1e-12).all()


def test_exact_prox_step():
    """Eq. 4 is solved: the gradient is zero, and SciPy finds nothing lower. Failed with a single Newton step."""
    p, center = problem()
    w = objective.prox(p.loss, center, 4.0)
    assert np.abs(p.loss.slope(w) + 4.0 * (w - center)).max() < 1e-10
    found = scipy.optimize.minimize(
        lambda v: p.loss.value(v.reshape(4, 3)).sum() + 2.0 * ((v - center.ravel()) ** 2).sum(), center.ravel()
    )
    np.testing.assert_allclose(w.ravel(), found.x, atol=1e-4)
    with pytest.raises(ValueError, match="several minima"):
        objective.prox(p.loss, 2 * center, 1e-4)


@pytest.mark.slow
def test_theorems(tmp_path, monkeypatch):
    """The bound holds for every K, the slope is at least as good as -1/2, and Eq. 5 as printed stops at its floor.

    Failed with alpha = lam (no 1 / sqrt(K)), with a proximal weight of alpha / lam, and with Eq. 5 in place of Eq. 3.
    """
    out = tmp_path / "out"
    command(monkeypatch, convergence.main, "--rounds", 10, 32, 100, 316, 1000, "--clients", 5, "--out", out)
    results = read(out)
    for key in ("theorem1", "theorem2"):
        rows = results[key]
        assert all(0 <= gap <= bound for gap, bound in zip(rows["gap"], rows["bound"], strict=True))
        assert rows["slope"] <= -0.5
        assert rows["gap"][-1] < 0.2 * rows["gap_eq5"][-1]
    first = results["theorem1"]
    assert first["eq5_floor"] > 1e-4 and first["gap_eq5"][-1] >= 0.99 * first["eq5_floor"]
    assert (out / "convergence.png").stat().st_size > 5000


def test_results_of_other_settings_are_kept(tmp_path, monkeypatch, capsys):
    """Failed when a run with other K overwrote them."""
    rows = {"K": [1], "gap": [1.0], "bound": [1.0], "B": [1.0], "gap_eq5": [1.0], "slope": 0.0, "best": 0.0}
    for theorem in ("theorem1", "theorem2"):
        monkeypatch.setattr(convergence, theorem, lambda options: rows)
    monkeypatch.setattr(convergence, "draw", lambda results: Figure())
    for _ in range(2):
        command(monkeypatch, convergence.main, "--rounds", 10, 20, "--out", tmp_path / "out")
    with pytest.raises(SystemExit) as stopped:
        command(monkeypatch, convergence.main, "--rounds", 10, 30, "--out", tmp_path / "out")
    assert stopped.value.code == 2 and "holds another run" in capsys.readouterr().err
    assert read(tmp_path / "out")["rounds"] == [10, 20]
