"""The papers' networks as `Task`s, and `from_linen`, which makes a `Task` from any Flax Linen module."""

from fedamp_jax.models.convolutional import cifar_cnn, cnn
from fedamp_jax.models.omniglot import omniglot_cnn
from fedamp_jax.models.perceptron import mlp
from fedamp_jax.models.resnet import resnet18
from fedamp_jax.models.task import Classifier, cross_entropy, from_linen

__all__ = ["Classifier", "cifar_cnn", "cnn", "cross_entropy", "from_linen", "mlp", "omniglot_cnn", "resnet18"]
