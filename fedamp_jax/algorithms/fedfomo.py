"""FedFomo (Zhang et al., ICLR 2021): models weighted by what they improve on a client's validation data."""

import jax
import jax.numpy as jnp

from fedamp_jax.algorithms.fedamp import attentive
from fedamp_jax.attention import Memory
from fedamp_jax.checks import check_integer, check_number
from fedamp_jax.engine import Solver, cross_losses, mean_loss, split_client
from fedamp_jax.trees import where
from fedamp_jax.types import Algorithm, Data, Task


def fedfomo(
    task: Task, solver: Solver, *, validation: float = 0.2, split_seed: int = 0, stats: str = "local"
) -> Algorithm:
    """FedFomo: `xi_ij` is proportional to `max(0, L_i(b_i) - L_i(w_j)) / ||w_j - b_i||`, and each row sums to 1.

    L_i is the loss on client i's validation examples, b_i its model before its last training. Its own trained model
    is one of the candidates. Client i then trains from `sum_j xi_ij w_j` on its other examples.

    Args:
        task: the model.
        solver: local training, and the batch size of the validation losses.
        validation: share of each client's examples that are for validation, in (0, 1); at least one. They are drawn
            once, stay the same in all rounds, and are never trained on, except by a client with a single example.
        split_seed: of that draw, which also follows the client's id.
        stats: as in `attentive`.

    Returns:
        The `Algorithm`; `info.xi` holds the weights.

    Raises:
        ValueError, TypeError: if an argument is out of range or of the wrong kind.

    Departs from the authors' program: every online client's model is a candidate, where the program downloads a few of
    those sent in the round before, chosen epsilon-greedily, and adds averages of clusters and of all models; a client
    for which no candidate is better than b_i keeps its trained model, where the program returns to b_i; the distance is
    the Euclidean one, where its default is the 1-norm. Validation losses are those of training (`mean_loss`), where it
    evaluates models: a difference for models with dropout or BatchNorm.

    >>> import optax, fedamp_jax
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.fedfomo(task, fedamp_jax.Solver(optax.adam(1e-3)))
    """
    check_number("validation", validation, low=0, high=1)
    if validation == 1:
        raise ValueError("validation must be below 1: the rest is what clients train on")
    check_integer("split_seed", split_seed, low=0)

    def split(client: Data) -> tuple[Data, Data]:
        key = jax.random.fold_in(jax.random.key(split_seed), client.id)
        return split_client(client, validation, key)

    def weights(models, edges, k, data, received):
        m, trained = len(edges), models.tree

        def own_loss(client, _, variables):
            return mean_loss(task, solver, split(client)[1], variables)

        def distance(_, mine):
            def to(theirs):
                squares = jax.tree.map(lambda a, b: jnp.sum(jnp.square(a - b)), mine, theirs)
                return jnp.sqrt(sum(jax.tree.leaves(squares)))

            return to

        work, place = jnp.where(data.online, data.size, 0), data.placement
        before = place.for_each_client(own_loss, data, jnp.zeros((m,), jnp.float32), received, work=work)
        after = cross_losses(task, solver, data, received._replace(params=trained), examples=lambda c: split(c)[1])
        apart = place.for_each_pair(distance, data, trained, received.params, work=work)
        # A loss that is not finite is no improvement, and must not reach the sums of the other candidates.
        fall = jnp.where(after < before[:, None], before[:, None] - after, 0.0)
        gain = jnp.where(apart > 0, fall / jnp.where(apart > 0, apart, 1.0), 0.0)
        own = jnp.eye(m, dtype=bool)
        gain = jnp.where((edges | own) & data.online[:, None], gain, 0.0)
        total = jnp.sum(gain, axis=1, keepdims=True)
        known = (total > 0) & jnp.isfinite(total)
        return jnp.where(known, gain / jnp.where(known, total, 1.0), own.astype(jnp.float32)), received

    def remember(received, begin, info):
        return where((info.epochs > 0) & ~info.rejected, begin, received)

    memory = Memory(lambda start: start, remember)
    return attentive(task, solver, weights, memory=memory, examples=lambda client: split(client)[0], stats=stats)
