"""HeurFedAMP (Huang et al., AAAI 2021, Section 6): FedAMP with a softmax over cosine similarities."""

from typing import Any, Unpack

from fedamp_jax import attention
from fedamp_jax.algorithms import collaborators
from fedamp_jax.algorithms.fedamp import ALPHA, Shared, attentive, geometry_of, proximal
from fedamp_jax.engine import Solver, of_clients
from fedamp_jax.types import Algorithm, Task


def heurfedamp(
    task: Task,
    solver: Solver,
    *,
    sigma: Any,
    self_weight: Any,
    alpha: Any = ALPHA,
    lam: Any = 1.0,
    of: str = "models",
    **shared: Unpack[Shared],
) -> Algorithm:
    """HeurFedAMP, Section 6 of Huang et al. 2021: FedAMP with weights from cosine similarities (Eq. 8).

    Args:
        task: the model.
        solver: local training.
        sigma: sharpness of the softmax over cosines, greater than 0; a number, one per client `[M]` for what it
            receives, a schedule of the round or a tracer; or `attention.perplexity(k)` or `attention.auto()`, as in
            `fedamp`.
        self_weight: xi_ii, a number in [0, 1] or one per client `[M]`; Appendix C takes `1 / (N_i + 1)`. None with
            `attention.auto()`.
        alpha: as in `fedamp`; here it only sets the proximal weight `lam / (2 alpha_k)`.
        lam: as in `fedamp`.
        of: what cosines are of, as in `fedamp`; with adapters, of the models' changes, without the base.
        **shared: `start`, `common_init`, `stats` and `stale`, see `attentive`.

    Returns:
        The `Algorithm`; `info.xi` holds the weights.

    Raises:
        ValueError, TypeError: if a hyper-parameter is out of range or of the wrong kind.

    As in `fedamp`, models start alike and local training starts from u_i.

    >>> import optax, fedamp_jax
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.heurfedamp(task, fedamp_jax.Solver(optax.adam(1e-3)), sigma=25.0, self_weight=1 / 21)
    """
    if self_weight is None and not isinstance(sigma, attention.Auto):
        raise ValueError("self_weight must be given for heurfedamp: Eq. 8 treats xi_ii as a hyper-parameter in [0, 1]")
    attention.check_hyperparameters(sigma, self_weight)

    geometry = geometry_of(task, solver, of)

    def given(models, edges, sigma, own):
        return attention.heurfedamp_weights(models, edges, sigma=sigma, self_weight=own, geometry=geometry)

    if isinstance(sigma, attention.Auto):
        chosen, memory = collaborators.found(task, solver, sigma, given)
        return attentive(task, solver, chosen, memory=memory, **proximal(alpha, lam), **shared)

    def weights(models, edges, k, data):
        own = of_clients("self_weight", self_weight, k, data)
        return given(models, edges, attention.sigma_at_round(sigma, k, data), own)

    explain = attention.explain if attention.may_fail(sigma, self_weight) else None
    return attentive(task, solver, weights, **proximal(alpha, lam), explain=explain, **shared)
