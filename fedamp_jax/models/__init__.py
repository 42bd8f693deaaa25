"""Models."""
from fedamp_jax.models.task import cross_entropy, from_linen
