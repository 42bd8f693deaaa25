"""The papers' networks as `Task`s; `from_linen` and `from_nnx`, which make a `Task` from any Flax module; losses and
the metrics that belong to them.
"""

from fedamp_jax.models.adapters import adapted
from fedamp_jax.models.convolutional import cifar_cnn, cnn
from fedamp_jax.models.inputs import mask_like
from fedamp_jax.models.losses import binary_cross_entropy, cross_entropy, multi_label, squared_error
from fedamp_jax.models.metrics import BINARY_ACCURACY, EXACT_MATCH, LABEL_ACCURACY, MAE, MSE
from fedamp_jax.models.nnx import from_nnx
from fedamp_jax.models.omniglot import omniglot_cnn
from fedamp_jax.models.perceptron import mlp
from fedamp_jax.models.resnet import resnet18
from fedamp_jax.models.task import Classifier, from_linen
from fedamp_jax.types import ACCURACY

__all__ = [
    "ACCURACY",
    "BINARY_ACCURACY",
    "EXACT_MATCH",
    "LABEL_ACCURACY",
    "MAE",
    "MSE",
    "Classifier",
    "adapted",
    "binary_cross_entropy",
    "cifar_cnn",
    "cnn",
    "cross_entropy",
    "from_linen",
    "from_nnx",
    "mask_like",
    "mlp",
    "multi_label",
    "omniglot_cnn",
    "resnet18",
    "squared_error",
]
