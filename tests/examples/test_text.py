"""The example of a sentence encoder: its numerics, and the command with a tiny random model and no tokenizer."""

import importlib
import json
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import fedamp_jax
from fedamp_jax import Variables
from fedamp_jax.models import from_nnx
from tests.oracles import bert

FOLDER = Path(__file__).parents[2] / "examples" / "text"
SIZES = {
    "vocab_size": 30, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20,
    "max_position_embeddings": 9, "type_vocab_size": 2, "layer_norm_eps": 1e-12,
}  # fmt: skip


@pytest.fixture
def example(monkeypatch):
    """The modules of the folder, as a script there imports them."""
    monkeypatch.syspath_prepend(str(FOLDER))
    names = ("encoder", "classify", "fortunes")
    yield tuple(importlib.import_module(name) for name in names)
    for name in names:
        sys.modules.pop(name)


def weights(seed=0):
    """Of a `BertModel` of these sizes, by their names in its file."""
    rng, width, hidden = np.random.default_rng(seed), SIZES["hidden_size"], SIZES["intermediate_size"]

    def dense(name, inputs, outputs):
        return {f"{name}.weight": rng.normal(size=(outputs, inputs)) / 2, f"{name}.bias": rng.normal(size=outputs) / 2}

    def norm(name):
        return {f"{name}.weight": 1 + rng.normal(size=width) / 4, f"{name}.bias": rng.normal(size=width) / 4}

    found = {}
    for kind, size in (
        ("word", "vocab_size"),
        ("position", "max_position_embeddings"),
        ("token_type", "type_vocab_size"),
    ):
        found[f"embeddings.{kind}_embeddings.weight"] = rng.normal(size=(SIZES[size], width))
    found |= norm("embeddings.LayerNorm")
    for i in range(SIZES["num_hidden_layers"]):
        layer = f"encoder.layer.{i}"
        for name in ("query", "key", "value"):
            found |= dense(f"{layer}.attention.self.{name}", width, width)
        found |= dense(f"{layer}.attention.output.dense", width, width) | norm(f"{layer}.attention.output.LayerNorm")
        found |= dense(f"{layer}.intermediate.dense", width, hidden) | dense(f"{layer}.output.dense", hidden, width)
        found |= norm(f"{layer}.output.LayerNorm")
    return {name: a.astype(np.float32) for name, a in found.items()}


def test_the_encoder_is_bert(example):
    """Each text by itself in float64, whatever padding it has here. Failed with attention to padding, with GELU's
    approximation, with the mean over all tokens, and with NaN for a text of padding.
    """
    encoder = example[0]
    config = encoder.Config(**SIZES)
    task = from_nnx(lambda rngs: encoder.Encoder(config, rngs), (9,), dtype=jnp.int32)
    given = weights()
    model = Variables(encoder.pretrained(given, config.num_hidden_layers).params["body"])
    ids = [[3, 7, 1, 29, 5, 2, 2, 8, 11], [4, 6, 6], [9]]
    padded = np.array([row + [0] * (9 - len(row)) for row in ids], np.int32)
    found = task.predict(model, padded)
    for row, vector in zip(ids, found):
        wanted = bert.sentence(given, row, config.num_hidden_layers, config.num_attention_heads, config.layer_norm_eps)
        np.testing.assert_allclose(vector, wanted, atol=1e-5)
    assert np.isfinite(task.predict(model, jnp.zeros((1, 9), jnp.int32))).all()  # of padding only


def test_groups_of_the_fortunes_disagree(example, monkeypatch, tmp_path):
    """Every client has texts of its own, of all topics under its group's names. Failed with a text at two clients."""
    fortunes = example[2]
    monkeypatch.setattr(fortunes, "FOLDER", tmp_path)
    for topic in fortunes.TOPICS:
        (tmp_path / topic).write_text("\n%\n".join(f"{topic} {i}\n\tmore" for i in range(80)) + "\n%\n")
    rows = list(fortunes.rows())
    assert len({text for _, text, _ in rows}) == len(rows) == 12 * 6 * 6 and "science 3 more" in fortunes.texts(
        "science"
    )
    names = {(client.split()[1], text.split()[0], label) for client, text, label in rows}
    assert len(names) == 3 * 6 and len({(topic, label) for _, topic, label in names}) == 3 * 6


@pytest.mark.slow
def test_the_command_trains_and_saves(example, monkeypatch, tmp_path, capsys):
    """Rows of both models, and adapters that another process loads. Failed with test texts among those of training."""
    encoder, classify, _ = example
    (tmp_path / "config.json").write_text(json.dumps(SIZES))
    save = pytest.importorskip("safetensors.numpy").save_file
    save({name: np.ascontiguousarray(a) for name, a in weights().items()}, tmp_path / "model.safetensors")

    def tokens(folder, texts, length):
        return np.array(
            [[int(text[1:]) // 29 + 1, int(text[1:]) % 29 + 1] + [0] * (length - 2) for text in texts], np.int32
        )

    monkeypatch.setattr(encoder, "tokens", tokens)
    lines = [f"{client},t{10 * i + j},{'ab'[i % 2]}" for j, client in enumerate(("Oslo", "Bern")) for i in range(9)]
    (tmp_path / "texts.csv").write_text("client,text,label\n" + "\n".join(lines) + "\n")
    train, test, names = classify.split(classify.read(tmp_path / "texts.csv"), tmp_path, 5)
    assert train.size.tolist() == [7, 7] and test.size.tolist() == [2, 2] and names == ["a", "b"]
    assert not {tuple(row) for row in np.asarray(train.x)} & {tuple(row) for row in np.asarray(test.x)}
    words = ["--model", tmp_path, "--out", tmp_path, "--length", 5, "--rank", 2, "--rounds", 2, "--mates", 1]
    classify.main([str(word) for word in (tmp_path / "texts.csv", *words)])
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert [row["model"] for row in rows] == ["head"] * 3 + ["adapters"] * 3
    config = encoder.read_config(tmp_path)
    base = encoder.pretrained(weights(), 2)
    saved = fedamp_jax.load_models(tmp_path / "models.npz", classify.tasks(config, base, 2, 5, 2)[0])
    assert saved.names == ["Oslo", "Bern"] and saved.predict("Bern", train.x[:3]).shape == (3, 2)
    other = classify.tasks(config, encoder.pretrained(weights(1), 2), 2, 5, 2)[0]
    with pytest.raises(ValueError, match="adapters of another base"):
        fedamp_jax.load_models(tmp_path / "models.npz", other)
