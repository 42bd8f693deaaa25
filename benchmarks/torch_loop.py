"""The same models and steps in PyTorch, one client after the other: how public libraries train clients."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn


class Block(nn.Module):
    """ResNet18's block of two 3x3 convolutions."""

    def __init__(self, inputs: int, width: int, stride: int):
        super().__init__()
        conv = lambda i, k, s: nn.Sequential(  # noqa: E731
            nn.Conv2d(i, width, k, s, padding=k // 2, bias=False), nn.BatchNorm2d(width)
        )
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
        conv = lambda i, o: [nn.Conv2d(i, o, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]  # noqa: E731
        dense = [nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, classes)]
        return nn.Sequential(*conv(1, 32), *conv(32, 64), *dense)
    stem = [nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2),
              (512, 512, 1)]  # fmt: skip
    return nn.Sequential(*stem, *(Block(*w) for w in widths), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(512, classes))  # fmt: skip


def loop(name: str, x: np.ndarray, y: np.ndarray, batch: int, epochs: int, prox: float) -> Callable[[], Any]:
    """A call that trains every client: Adam 1e-3, a fresh optimizer for each, the proximal term of FedAMP's Eq. 6.

    Args:
        name: of the model.
        x: `[M, N, ...]` uint8 images, channels last.
        y: `[M, N]` labels.
        batch: examples per step.
        epochs: passes.
        prox: weight of the proximal term's gradient.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.tensor(x).to(device)
    x = x.permute(0, 1, 4, 2, 3).contiguous() if x.ndim == 5 else x[:, :, None]
    y = torch.tensor(y, dtype=torch.long).to(device)
    clients = [model(name, int(y.max()) + 1).to(device) for _ in range(len(x))]
    centers = [[p.detach().clone() for p in client.parameters()] for client in clients]

    def train() -> None:
        for client, center, images, labels in zip(clients, centers, x, y, strict=True):
            optimizer = torch.optim.Adam(client.parameters(), 1e-3)
            for _ in range(epochs):
                order = torch.randperm(len(labels), device=device)
                for rows in order.split(batch):
                    optimizer.zero_grad()
                    loss = nn.functional.cross_entropy(client(images[rows].float() / 255), labels[rows])
                    loss.backward()
                    for p, c in zip(client.parameters(), center, strict=True):
                        p.grad.add_(p.detach() - c, alpha=prox)
                    optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()

    return train
