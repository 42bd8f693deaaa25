"""The same models and steps in PyTorch: plainly, as public libraries train clients, and as fast as PyTorch can."""

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import nn


class Block(nn.Module):
    """ResNet18's block of two 3x3 convolutions."""

    def __init__(self, inputs: int, width: int, stride: int):
        super().__init__()

        def conv(i, k, s):
            return nn.Sequential(nn.Conv2d(i, width, k, s, padding=k // 2, bias=False), nn.BatchNorm2d(width))

        self.first, self.second = conv(inputs, 3, stride), conv(width, 3, 1)
        self.around = conv(inputs, 1, stride) if stride > 1 or inputs != width else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))) + self.around(x))


def model(name: str, classes: int) -> nn.Module:
    """The counterpart of `fedamp_jax.models.<name>`, with as many parameters."""
    if name in ("small", "mlp"):
        return nn.Sequential(
            nn.Flatten(), nn.Linear(64 if name == "small" else 784, 200), nn.ReLU(), nn.Linear(200, classes)
        )
    if name == "cnn":

        def conv(i, o):
            return [nn.Conv2d(i, o, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]

        dense = [nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, classes)]
        return nn.Sequential(*conv(1, 32), *conv(32, 64), *dense)
    stem = [nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2),
              (512, 512, 1)]  # fmt: skip
    return nn.Sequential(*stem, *(Block(*w) for w in widths), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(512, classes))  # fmt: skip


def loop(
    name: str,
    x: np.ndarray,
    y: np.ndarray,
    batch: int,
    epochs: int,
    prox: float,
    *,
    tuned: bool = False,
    autocast: bool = False,
    side_by_side: bool = False,
) -> Callable[[], Any]:
    """A call that trains every client: Adam 1e-3, a fresh optimizer for each, the proximal term of FedAMP's Eq. 6.

    Args:
        name: of the model.
        x: `[M, N, ...]` uint8 images, channels last.
        y: `[M, N]` labels.
        batch: examples per step.
        epochs: passes.
        prox: weight of the proximal term's gradient.
        tuned: with channels last in memory and a fused Adam.
        autocast: with bfloat16 where PyTorch's autocast uses it.
        side_by_side: on a CPU, with one client on each core, instead of one client on all of them.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, y = _on(device, x, y)
    memory = torch.channels_last if tuned else torch.contiguous_format
    clients = [model(name, int(y.max()) + 1).to(device, memory_format=memory) for _ in range(len(x))]
    centers = [[p.detach().clone() for p in client.parameters()] for client in clients]

    def one(i: int) -> None:
        client, center, images, labels = clients[i], centers[i], x[i], y[i]
        optimizer = torch.optim.Adam(client.parameters(), 1e-3, fused=tuned)
        for _ in range(epochs):
            order = torch.randperm(len(labels), device=device)
            for rows in order.split(batch):
                optimizer.zero_grad()
                inputs = (images[rows].float() / 255).to(memory_format=memory)
                with torch.autocast(device, torch.bfloat16, enabled=autocast):
                    loss = nn.functional.cross_entropy(client(inputs), labels[rows])
                loss.backward()
                for p, c in zip(client.parameters(), center, strict=True):
                    p.grad.add_(p.detach() - c, alpha=prox)
                optimizer.step()

    def train() -> None:
        cores = len(os.sched_getaffinity(0))
        if side_by_side and device == "cpu":
            torch.set_num_threads(1)
            # The interpreter is released during operations and in the whole backward pass.
            with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                list(pool.map(one, range(len(clients))))
        else:
            torch.set_num_threads(cores)
            for i in range(len(clients)):
                one(i)
        if device == "cuda":
            torch.cuda.synchronize()

    return train


def vmapped(name: str, x: np.ndarray, y: np.ndarray, batch: int, epochs: int, prox: float) -> Callable[[], Any]:
    """A call that trains all clients at once by `torch.func.vmap`, with a fused Adam on their stacked parameters.

    Arguments as of `loop`. Not for ResNet18, whose running statistics `vmap` cannot update.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, y = _on(device, x, y)
    clients = [model(name, int(y.max()) + 1).to(device) for _ in range(len(x))]
    stacked, _ = torch.func.stack_module_state(clients)
    stacked = {key: value.detach() for key, value in stacked.items()}
    centers = {key: value.clone() for key, value in stacked.items()}

    def loss(params: dict[str, torch.Tensor], images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(torch.func.functional_call(clients[0], params, images), labels)

    gradients = torch.func.vmap(torch.func.grad(loss))
    every = torch.arange(len(x), device=device)[:, None]

    def train() -> None:
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        optimizer = torch.optim.Adam(list(stacked.values()), 1e-3, fused=True)
        for _ in range(epochs):
            order = torch.rand(y.shape, device=device).argsort(1)
            for rows in order.split(batch, 1):
                grads = gradients(stacked, x[every, rows].float() / 255, y[every, rows])
                for key, value in stacked.items():
                    value.grad = grads[key].add_(value - centers[key], alpha=prox)
                optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()

    return train


def _on(device: str, x: np.ndarray, y: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Images, channels first, and labels."""
    images = torch.tensor(x).to(device)
    images = images.permute(0, 1, 4, 2, 3).contiguous() if images.ndim == 5 else images[:, :, None]
    return images, torch.tensor(y, dtype=torch.long).to(device)


def contestants(
    name: str, x: np.ndarray, y: np.ndarray, batch: int, epochs: int, prox: float
) -> dict[str, Callable[[], Any]]:
    """Every way to train the clients in PyTorch, by name; arguments as of `loop`."""
    make = functools.partial(loop, name, x, y, batch, epochs, prox)
    calls = {
        "torch": make(),
        "torch tuned": make(tuned=True),
        "torch tuned, side by side": make(tuned=True, side_by_side=True),
        "torch autocast": make(tuned=True, autocast=True),
        "torch autocast, side by side": make(tuned=True, autocast=True, side_by_side=True),
    }
    return calls if name == "resnet18" else {**calls, "torch vmap": vmapped(name, x, y, batch, epochs, prox)}
