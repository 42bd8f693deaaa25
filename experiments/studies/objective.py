"""Eq. 1 of the FedAMP paper in float64 NumPy: losses, attention-inducing functions, exact prox step, minimum."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.optimize

Array = np.ndarray


class Loss(NamedTuple):
    """The clients' losses F_i.

    Attributes:
        value: `W [m, d] -> [m]`.
        slope: the gradient, `W [m, d] -> [m, d]`.
        curve: the Hessian, `W [m, d] -> [m, d, d]`.
        smooth: the Lipschitz constant of the gradient.
    """

    value: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    curve: Callable[[Array], Array]
    smooth: float


class Attention(NamedTuple):
    """An attention-inducing function of a squared distance t.

    Attributes:
        value: `A(t)`.
        slope: `A'(t)`.
        smooth: the Lipschitz constant of the gradient of `A(||d||^2)` with respect to d.
    """

    value: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    smooth: float


def pseudo_huber(sigma: float) -> Attention:
    """`A(t) = sigma (sqrt(1 + t / sigma) - 1)`: satisfies Definition 1, and is convex in the models' difference."""
    return Attention(lambda t: sigma * (np.sqrt(1 + t / sigma) - 1), lambda t: 0.5 / np.sqrt(1 + t / sigma), smooth=1.0)


def neg_exp(sigma: float) -> Attention:
    """`A(t) = 1 - exp(-t / sigma)`, the paper's choice."""
    return Attention(lambda t: -np.expm1(-t / sigma), lambda t: np.exp(-t / sigma) / sigma, smooth=2 / sigma)


def _linear(x: Array, y: Array, link: Callable[[Array], tuple[Array, Array, Array]], most: float, ridge: float) -> Loss:
    """The mean over examples of a loss of a linear score, plus a ridge penalty.

    Args:
        x: `[m, n, d]`.
        y: `[m, n]`, subtracted from the score.
        link: `score [m, n] ->` the loss and its first and second derivative.
        most: the largest second derivative.
        ridge: factor of the penalty.
    """

    def score(w: Array) -> Array:
        return np.einsum("mnd,md->mn", x, w) - y

    n, d = x.shape[1:]
    largest = max(np.linalg.eigvalsh(x_i.T @ x_i / n)[-1] for x_i in x)
    return Loss(
        lambda w: link(score(w))[0].mean(1) + ridge / 2 * (w**2).sum(1),
        lambda w: np.einsum("mnd,mn->md", x, link(score(w))[1]) / n + ridge * w,
        lambda w: np.einsum("mnd,mn,mne->mde", x, link(score(w))[2], x) / n + ridge * np.eye(d),
        smooth=float(most * largest + ridge),
    )


def logistic(rng: np.random.Generator, m: int, n: int, d: int) -> Loss:
    """Convex: logistic regression with clients in two groups; a small ridge penalty makes the minimum unique."""
    truth = rng.normal(size=(2, d))[np.arange(m) % 2] + 0.3 * rng.normal(size=(m, d))
    x = 2 * rng.normal(size=(m, n, d)) / np.sqrt(d)
    sign = np.where(rng.random((m, n)) < 1 / (1 + np.exp(-np.einsum("mnd,md->mn", x, truth))), 1.0, -1.0)

    def link(s: Array) -> tuple[Array, Array, Array]:
        p = 1 / (1 + np.exp(s))
        return np.logaddexp(0, -s), -p, p * (1 - p)

    return _linear(sign[..., None] * x, np.zeros((m, n)), link, most=0.25, ridge=0.02)


def robust(rng: np.random.Generator, m: int, n: int, d: int) -> Loss:
    """Smooth but not convex: robust regression, `r^2 / (1 + r^2)`, where a fifth of the targets is wrong."""
    truth = rng.normal(size=(2, d))[np.arange(m) % 2] + 0.3 * rng.normal(size=(m, d))
    x = rng.normal(size=(m, n, d)) / np.sqrt(d)
    y = np.einsum("mnd,md->mn", x, truth) + np.where(rng.random((m, n)) < 0.2, rng.normal(0, 5, (m, n)), 0)

    def link(r: Array) -> tuple[Array, Array, Array]:
        q = 1 + r**2
        return r**2 / q, 2 * r / q**2, (2 - 6 * r**2) / q**3

    return _linear(x, y, link, most=2.0, ridge=0.0)


class Problem(NamedTuple):
    """Eq. 1: `G(W) = sum_i F_i(w_i) + lam calA(W)`, `calA(W) = sum_{i<j} A(||w_i - w_j||^2)`, `W [m, d]`."""

    loss: Loss
    attention: Attention
    lam: float

    def value(self, w: Array) -> float:
        """G(W). As A(0) = 0, the diagonal adds nothing."""
        pairs = self.attention.value(_distances(w)).sum() / 2
        return float(self.loss.value(w).sum() + self.lam * pairs)

    def pull(self, w: Array) -> Array:
        """The gradient of calA: `2 sum_j A'(||w_i - w_j||^2) (w_i - w_j)`; Eq. 5 omits the 2."""
        slope = self.attention.slope(_distances(w))
        return 2 * (slope.sum(1, keepdims=True) * w - slope @ w)

    def gradient(self, w: Array) -> Array:
        """The gradient of G."""
        return self.loss.slope(w) + self.lam * self.pull(w)

    def smooth(self, m: int) -> float:
        """L of Theorem 2 as its proof uses it: of the gradients of F and of lam calA, to which m clients contribute."""
        return max(self.loss.smooth, self.lam * m * self.attention.smooth)


def _distances(w: Array) -> Array:
    """`||w_i - w_j||^2`, `[m, m]`."""
    return ((w[:, None] - w[None]) ** 2).sum(-1)


def prox(loss: Loss, center: Array, weight: float) -> Array:
    """Eq. 4 for every client: the minimum of `F_i(w) + weight / 2 ||w - u_i||^2`, by Newton's method.

    Raises:
        ValueError: the weight is too small for the loss's negative curvature, so there may be several minima.
        RuntimeError: no convergence.
    """
    w, eye = center.copy(), np.eye(center.shape[1])
    for _ in range(100):
        slope = loss.slope(w) + weight * (w - center)
        if np.abs(slope).max() <= 1e-12 * (1 + weight):
            return w
        curve = loss.curve(w) + weight * eye
        if np.linalg.eigvalsh(curve).min() <= 0:
            raise ValueError(f"lam / alpha = {weight:g} lets Eq. 4 have several minima: use larger K")
        w = w - np.linalg.solve(curve, slope[..., None])[..., 0]
    raise RuntimeError("Newton's method did not converge in 100 steps")


def minimize(problem: Problem, starts: list[Array]) -> tuple[Array, float]:
    """The best of the minima found from several starts, and G there."""
    best: Any = None
    for start in starts:
        found = scipy.optimize.minimize(
            lambda w, shape=start.shape: problem.value(w.reshape(shape)), start.ravel(), method="BFGS",
            jac=lambda w, shape=start.shape: problem.gradient(w.reshape(shape)).ravel(),
            options={"gtol": 1e-11, "maxiter": 20_000},
        )  # fmt: skip
        if best is None or found.fun < best.fun:
            best = found
    return best.x.reshape(starts[0].shape), float(best.fun)
