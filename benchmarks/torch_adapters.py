"""Training of LoRA adapters in PyTorch with peft: plainly, and as fast as PyTorch can.

`adapters.py` starts this file as a process of its own, with any Python that has torch, transformers and peft, and asks
it for rounds on its standard input, so that they take turns with other contestants'.
"""

import contextlib
import copy
import json
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import peft
import torch
import transformers
from resident import resident
from torch import nn

RANK, CLASSES, MODULES = 8, 6, ["query", "key", "value", "attention.output.dense"]


class Classifier(nn.Module):
    """The counterpart of `examples/text/encoder.py`: mean of the tokens' vectors, length 1, times 10, a linear head."""

    def __init__(self, body: nn.Module, width: int):
        super().__init__()
        self.body, self.head = body, nn.Linear(width, CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        real = tokens != 0
        states = self.body(input_ids=tokens, attention_mask=real.long()).last_hidden_state
        mean = (states * real[..., None]).sum(1) / real.sum(1, keepdim=True)
        return self.head(10.0 * nn.functional.normalize(mean, dim=1))


def encoder(sizes: dict[str, Any]) -> nn.Module:
    """A `BertModel` of these sizes, without dropout and with frozen random weights."""
    config = transformers.BertConfig(**sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return transformers.BertModel(config, add_pooling_layer=False).requires_grad_(False)


def settings() -> peft.LoraConfig:
    """LoRA in all dense layers of the attention; peft's `alpha / r` is our `scale`."""
    return peft.LoraConfig(r=RANK, lora_alpha=RANK, target_modules=MODULES, lora_dropout=0.0)


def fit(model: nn.Module, params: Sequence[nn.Parameter], texts: torch.Tensor, batch: int, fused: bool) -> None:
    """One epoch of one client: Adam 1e-3, a fresh optimizer."""
    optimizer = torch.optim.Adam(params, 1e-3, fused=fused)
    labels = torch.arange(len(texts)) % CLASSES
    for rows in torch.randperm(len(texts)).split(batch):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(texts[rows]), labels[rows]).backward()
        optimizer.step()


def named(sizes: dict[str, Any], texts: Sequence[torch.Tensor], batch: int) -> Callable[[], None]:
    """A round as peft's documentation has it: every client's adapters are a named set in one model."""
    model = Classifier(encoder(sizes), sizes["hidden_size"])
    heads = [copy.deepcopy(model.head) for _ in texts]
    model.body = peft.get_peft_model(model.body, settings(), adapter_name="client0")
    for i in range(1, len(texts)):
        model.body.add_adapter(f"client{i}", settings())

    def train() -> None:
        for i, own in enumerate(texts):
            model.body.set_adapter(f"client{i}")
            model.head = heads[i]
            fit(model, [p for p in model.parameters() if p.requires_grad], own, batch, fused=False)

    return train


def swapped(
    sizes: dict[str, Any], texts: Sequence[torch.Tensor], batch: int, *, workers: int = 1, compiled: bool = False
) -> Callable[[], None]:
    """A round that copies a client's adapters into a single set and back, with a fused Adam.

    Args:
        sizes: of the encoder.
        texts: `[N, L]` of each client.
        batch: texts of a step.
        workers: so many clients at once, each on its share of the cores; their models share the frozen weights.
        compiled: with `torch.compile`.
    """
    body = encoder(sizes)
    shared = {id(p): p for p in body.parameters()}
    models = []
    for _ in range(workers):
        own = peft.get_peft_model(copy.deepcopy(body, dict(shared)), settings())
        models.append(Classifier(own, sizes["hidden_size"]))
    params = [[p for p in model.parameters() if p.requires_grad] for model in models]
    calls = [torch.compile(model) if compiled else model for model in models]
    clients = [[p.detach().clone() for p in params[0]] for _ in texts]

    def one(i: int, worker: int) -> None:
        with torch.no_grad():
            for p, own in zip(params[worker], clients[i], strict=True):
                p.copy_(own)
        fit(calls[worker], params[worker], texts[i], batch, fused=True)
        with torch.no_grad():
            for p, own in zip(params[worker], clients[i], strict=True):
                own.copy_(p)

    def train() -> None:
        cores = len(os.sched_getaffinity(0))
        torch.set_num_threads(cores // workers)
        if workers == 1:
            for i in range(len(texts)):
                one(i, 0)
            return
        # The interpreter is released during operations and in the whole backward pass.
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(cores // workers,)) as pool:
            share = [range(worker, len(texts), workers) for worker in range(workers)]
            list(pool.map(lambda worker: [one(i, worker) for i in share[worker]], range(workers)))

    return train


def contestant(name: str, sizes: dict[str, Any], clients: int, texts: int, length: int, batch: int) -> Any:
    """A call that trains all clients once, by its name in `adapters.py`."""
    torch.manual_seed(0)
    all_texts = list(torch.randint(1, sizes["vocab_size"], (clients, texts, length)))
    cores = len(os.sched_getaffinity(0))
    made: dict[str, Callable[[], Any]] = {
        "peft": lambda: named(sizes, all_texts, batch),
        "swapped": lambda: swapped(sizes, all_texts, batch),
        "swapped, client per core": lambda: swapped(sizes, all_texts, batch, workers=cores),
        "swapped, compiled": lambda: swapped(sizes, all_texts, batch, compiled=True),
    }
    return made[name]()


def main() -> None:
    """Answers a line of `contestant`'s arguments after a round; the first line of a contestant makes it.

    An answer is `{"memory": ...}`: resident MB after the round and at the peak, less those after the imports.
    """
    made: dict[str, Callable[[], Any]] = {}
    before = resident()[0]
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        if line not in made:
            made[line] = contestant(**json.loads(line))
        made[line]()
        now, peak = resident()
        memory = {"after a round (MB)": now - before, "peak (MB)": peak - before}
        print(json.dumps({"memory": memory}), file=answers, flush=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
