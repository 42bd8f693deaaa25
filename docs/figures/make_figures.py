"""The figures of the documentation: `python docs/figures/make_figures.py` writes each as SVG beside this script.

Lengths are in hundredths of an inch. Text becomes outlines, so a figure looks the same wherever it is shown; the white
background keeps it readable on dark pages.
"""

import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from fedamp_jax.report.styles import styles
from fedamp_jax.report.sweeps import sweeps

HERE = Path(__file__).parent
RESULTS = HERE.parent.parent / "experiments" / "studies" / "results"

INK, QUIET, LINE = "#111111", "#555555", "#777777"
FILLS = ("#cfe6f5", "#fbdcc6", "#cdeadd", "#f6e3b4")
EDGES = ("#0072b2", "#d55e00", "#009e73", "#b07a00")
CODE = "DejaVu Sans Mono"


class Board:
    """A drawing of `width` by `height`, y downwards."""

    def __init__(self, width, height):
        self.figure = plt.figure(figsize=(width / 100, height / 100))
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set(xlim=(0, width), ylim=(height, 0))
        self.axes.axis("off")

    def box(self, x, y, w, h, text="", *, kind=None, size=10, code=False, round=8, dashed=False, weight="normal"):
        fill, edge = ("#ffffff", LINE) if kind is None else (FILLS[kind], EDGES[kind])
        style = f"round,pad=0,rounding_size={round}" if round else "square,pad=0"
        self.axes.add_patch(
            FancyBboxPatch((x, y), w, h, style, fc=fill, ec=edge, lw=1.2, ls="--" if dashed else "-", mutation_aspect=1)
        )
        if text:
            self.text(x + w / 2, y + h / 2, text, size=size, code=code, weight=weight)

    def cell(self, x, y, w, h, fill, *, edge="#ffffff", width=0.8, hatch=None):
        self.axes.add_patch(Rectangle((x, y), w, h, fc=fill, ec=edge, lw=width, hatch=hatch))

    def text(self, x, y, text, *, size=10, code=False, color=INK, align="center", weight="normal", style="normal"):
        family = {"family": CODE} if code else {}
        self.axes.text(x, y, text, ha=align, va="center_baseline", fontsize=size, color=color, fontweight=weight,
                       fontstyle=style, linespacing=1.35, **family)  # fmt: skip

    def arrow(self, start, end, *, bend=0.0, color=QUIET, dashed=False):
        self.axes.add_patch(
            FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=10, lw=1.2, color=color, shrinkA=0, shrinkB=0,
                            linestyle="--" if dashed else "-", connectionstyle=f"arc3,rad={bend}")
        )  # fmt: skip

    def save(self, name):
        save(self.figure, name)


def save(figure, name):
    with plt.rc_context({"svg.hashsalt": "fedamp_jax", "svg.fonttype": "path"}):  # the same figure is the same file
        figure.savefig(HERE / f"{name}.svg", facecolor="white", metadata={"Date": None})
    plt.close(figure)


def one_round():
    """A round of FedAMP with four clients in two groups; the weights are those of Eq. 7 with a self weight of 1/4."""
    board = Board(760, 330)
    own, distance = 0.25, np.array([[0, 1, 4, 4], [1, 0, 4, 4], [4, 4, 0, 1], [4, 4, 1, 0]])
    score = np.exp(-distance / 1.2) * (1 - np.eye(4))
    xi = own * np.eye(4) + (1 - own) * score / score.sum(axis=1, keepdims=True)
    titles = (
        (85, "1. clients send"),
        (305, "2. server weighs pairs"),
        (501, "3. server mixes"),
        (675, "4. clients train"),
    )
    for x, title in titles:
        board.text(x, 28, title, size=10.5, color=QUIET)
    for i in range(4):
        y, kind = 60 + 60 * i, i // 2
        board.box(40, y, 90, 46, f"$w_{i + 1}$", kind=kind, size=14)
        board.arrow((134, y + 23), (192, y + 23))
        board.box(456, y, 90, 46, f"$u_{i + 1}$", kind=kind, size=14)
        board.arrow((416, y + 23), (450, y + 23))
        board.box(630, y, 90, 46, f"new $w_{i + 1}$", kind=kind, size=12)
        board.arrow((552, y + 23), (624, y + 23))
        for j in range(4):
            shade = 0.95 * xi[i, j] / xi.max()
            board.cell(200 + 52.5 * j, 60 + 56.5 * i, 52.5, 56.5, str(1 - 0.75 * shade), edge="white", width=1)
            color = "white" if shade > 0.55 else INK
            board.text(226 + 52.5 * j, 88 + 56.5 * i, f"{xi[i, j]:.2f}", size=10, color=color)
    for group in range(2):
        board.cell(200 + 105 * group, 60 + 113 * group, 105, 113, "none", edge=EDGES[group], width=2.4)
    board.text(305, 306, r"row $i$ of $\xi$: what client $i$ receives", size=10, color=QUIET)
    board.text(501, 306, r"$u_i = \sum_j \xi_{ij} w_j$", size=11, color=QUIET)
    board.text(675, 306, r"from $u_i$, near $u_i$", size=10, color=QUIET)
    board.save("round")


def stack():
    """All models as one pytree: leaves with a leading client axis."""
    board = Board(760, 270)
    board.text(80, 26, "one model per client", size=10.5, color=QUIET)
    for i, y in enumerate((48, 94, 140)):
        board.box(25, y, 110, 36, f"client {i}", kind=i % 2, size=10)
    board.text(80, 190, "...", size=14)
    board.box(25, 210, 110, 36, "client 19", kind=1, size=10)
    board.arrow((145, 148), (190, 148))
    board.text(355, 26, "one pytree: leaves with a leading client axis", size=10.5, color=QUIET)
    leaves = (
        ("kernel", "[20, 64, 200]", 222, 84, 70),
        ("bias", "[20, 200]", 348, 58, 18),
        ("kernel", "[20, 200, 10]", 440, 50, 70),
    )
    for name, shape, x, w, h in leaves:
        for i in reversed(range(6)):
            board.cell(x + 5 * i, 142 - 11 * i - h / 2 + 35, w, h, FILLS[i % 2], edge=EDGES[i % 2], width=1)
        board.text(x + w / 2 + 10, 228, name, size=10, code=True)
        board.text(x + w / 2 + 10, 246, shape, size=9, code=True, color=QUIET)
    board.arrow((214, 200), (214, 66), color=EDGES[2])
    board.text(214, 54, "clients", size=9, color=EDGES[2])
    rows = (
        (70, "train", "one compiled program"),
        (140, "compare", "distances, weights"),
        (210, "mix", "xi @ models"),
    )
    for y, first, second in rows:
        board.arrow((548, 140), (592, y), color=LINE)
        board.text(600, y - 8, first, size=10, align="left", weight="bold")
        board.text(600, y + 10, second, size=9, align="left")
    board.save("stack")


def program():
    """The objects of a first program, and how they fit together."""
    board = Board(760, 250)
    board.box(20, 30, 150, 54, "Data\nof all clients", kind=0)
    board.box(20, 98, 150, 54, "Task\nmodel and loss", kind=1)
    board.box(20, 166, 150, 54, "Solver\nlocal training", kind=1)
    board.box(250, 120, 150, 62, "Algorithm\nFedAMP, FedAvg, ...", kind=2)
    board.arrow((174, 125), (244, 144))
    board.arrow((174, 193), (244, 164))
    board.box(456, 70, 128, 62, "run\nfor some rounds", kind=3)
    board.arrow((404, 146), (450, 120))
    board.arrow((174, 57), (450, 90))
    board.arrow((588, 101), (614, 101))
    board.text(622, 62, "accuracy", size=10, code=True, align="left")
    board.text(622, 80, "[rounds, clients]", size=8.5, align="left", color=QUIET)
    board.text(622, 106, "xi", size=10, code=True, align="left")
    board.text(622, 124, "[clients, clients]", size=8.5, align="left", color=QUIET)
    board.text(622, 150, "state", size=10, code=True, align="left")
    board.text(622, 168, "all models", size=8.5, align="left", color=QUIET)
    board.text(325, 202, "and its hyper-parameters: sigma, ...", size=8.5, color=QUIET)
    board.save("program")


def data():
    """Lists of different lengths, or a table with a client column, as one `Data`."""
    board = Board(760, 290)
    sizes, names = (8, 5, 10, 2), ("Oslo", "København", "Berlin", "Paris")
    board.text(130, 26, "your examples, client by client", size=10.5, color=QUIET)
    for i, (name, n) in enumerate(zip(names, sizes)):
        y = 56 + 44 * i
        board.text(96, y + 13, name, size=10, align="right")
        for j in range(n):
            board.cell(106 + 15 * j, y, 14, 26, FILLS[i], edge=EDGES[i])
    board.arrow((276, 132), (366, 132))
    board.text(321, 112, "from_lists", size=9, code=True)
    board.text(321, 152, "from_table", size=9, code=True)
    board.text(561, 26, "x [T, ...]   y [T, ...]: one client's after the other's", size=10.5, color=QUIET)
    for k, i in enumerate(i for i, n in enumerate(sizes) for _ in range(n)):
        board.cell(386 + 14 * k, 44, 14, 26, FILLS[i], edge=EDGES[i])
    for j, name in enumerate(("start", "size", "online")):
        board.text(470 + 90 * j, 98, name, size=10, code=True)
        board.text(470 + 90 * j, 272, "[M]", size=9.5, code=True)
    for i, n in enumerate(sizes):
        for j, value in enumerate((sum(sizes[:i]), n, True)):
            board.box(449 + 90 * j, 112 + 38 * i, 42, 26, str(value), round=4, size=9.5)
        board.cell(420, 112 + 38 * i, 14, 26, FILLS[i], edge=EDGES[i])
    board.save("data")


def method():
    """The three functions of an `Algorithm`."""
    board = Board(760, 260)
    board.box(30, 100, 120, 56, "init", kind=0, code=True, size=13)
    board.text(90, 172, "key, data", size=9.5, code=True, color=QUIET)
    board.arrow((154, 128), (200, 128))
    board.box(206, 106, 80, 44, "state", code=True, size=11, dashed=True)
    board.arrow((290, 128), (336, 128))
    board.box(342, 100, 120, 56, "round", kind=1, code=True, size=13)
    board.text(402, 172, "key, state, data", size=9.5, code=True, color=QUIET)
    board.arrow((402, 96), (246, 102), bend=0.55)
    board.text(324, 34, "the new state, for the next round", size=9.5, color=QUIET)
    board.arrow((466, 128), (512, 128))
    board.box(518, 100, 130, 56, "personalize", kind=2, code=True, size=12)
    board.text(490, 116, "state", size=8.5, code=True, color=QUIET)
    board.text(583, 172, "key, state, data", size=9.5, code=True, color=QUIET)
    board.arrow((652, 128), (682, 128))
    board.text(686, 120, "models", size=10, align="left")
    board.text(686, 138, "[M, ...]", size=9, align="left", code=True, color=QUIET)
    board.arrow((402, 182), (402, 212))
    board.text(402, 224, "info: losses, xi, who was rejected", size=9.5)
    board.text(402, 243, "to be plotted or dropped", size=9, color=QUIET)
    board.text(90, 224, "before the first round", size=9, color=QUIET)
    board.text(610, 224, "for use and for evaluation", size=9, color=QUIET)
    board.save("method")


def devices():
    """Eight clients on four devices: the rows of `[M, D]` in training, its columns in aggregation."""
    board = Board(760, 300)
    panels = (
        (80, "1. train", "each device: its own clients", lambda i, j: i // 2),
        (320, "2. compare and mix", "each device: a slice of all models", lambda i, j: j // 2),
        (560, "3. train again", "each device: its own clients", lambda i, j: i // 2),
    )
    for x, title, text, owner in panels:
        board.text(x + 72, 26, title, size=10.5)
        for i in range(8):
            for j in range(8):
                kind = owner(i, j)
                board.cell(x + 18 * j, 58 + 20 * i, 18, 20, FILLS[kind], edge="#ffffff")
        for kind in range(4):
            if x == 320:
                board.cell(x + 36 * kind, 58, 36, 160, "none", edge=EDGES[kind], width=1.6)
            else:
                board.cell(x, 58 + 40 * kind, 144, 40, "none", edge=EDGES[kind], width=1.6)
        board.text(x + 72, 236, text, size=9, color=QUIET)
    board.text(66, 138, "8 clients", size=9.5, align="right")
    board.text(152, 46, "parameters", size=9, color=QUIET)
    for x in (236, 476):
        board.arrow((x, 138), (x + 72, 138))
        board.text(x + 36, 122, "all-to-all", size=9, color=QUIET)
    for kind in range(4):
        board.cell(190 + 100 * kind, 262, 16, 16, FILLS[kind], edge=EDGES[kind], width=1.2)
        board.text(212 + 100 * kind, 271, f"device {kind}", size=9.5, align="left")
    board.save("devices")


def convergence():
    """The practical setting on digits: means over five seeds, bands of one standard deviation."""
    methods = json.loads((RESULTS / "practical-digits-seeds.json").read_text())["methods"]
    shown = ("FedAMP", "HeurFedAMP", "Ditto", "FedAvg-FT", "FedAvg", "FedPer", "Separate")
    figure, axes = plt.subplots(figsize=(7.6, 3.6), layout="constrained")
    for name in shown:
        found, style = methods[name], styles(shown)[name]
        rounds, mean, std = (np.asarray(found[key]) for key in ("rounds", "mean_accuracy", "mean_accuracy_std"))
        look = {"color": style.colour, "ls": style.line, "lw": 0.7 * style.width, "marker": style.marker}
        axes.plot(rounds, mean, label=name, markevery=(4, 20), ms=5, **look)
        axes.fill_between(rounds, mean - std, mean + std, color=style.colour, alpha=0.1, lw=0)
    axes.set(xlabel="round", ylabel="mean test accuracy, %", xlim=(0, 101), ylim=(70, 98))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    save(figure, "convergence")


def strength():
    """Groups of clients that disagree, on digits: means over three seeds, bands of one standard deviation."""
    figure, panels = plt.subplots(1, 2, figsize=(7.6, 3.4), sharey=True, layout="constrained")
    for axes, shift in zip(panels, ("labels", "rotation"), strict=True):
        (found,) = sweeps(json.loads((RESULTS / f"concept-digits-{shift}.json").read_text()))
        lines = found.panels[""]
        for name, (x, mean, std) in lines.items():
            style = styles(lines)[name]
            look = {"color": style.colour, "ls": style.line, "lw": 0.7 * style.width, "marker": style.marker}
            axes.plot(x, mean, label=name, ms=5, **look)
            axes.fill_between(x, mean - std, mean + std, color=style.colour, alpha=0.1, lw=0)
        axes.set(xlabel="strength", title={"labels": "permuted labels", "rotation": "turned images"}[shift])
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set(ylabel="mean test accuracy, %", ylim=(0, 100))
    panels[1].legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    save(figure, "strength")


def adapters():
    """FedAMP with a pretrained model: what clients train, and how soon attention finds their groups."""
    rows = json.loads((HERE.parent.parent / "examples" / "adapters" / "images.json").read_text())["rows"]

    def of(method, model, name):
        return [row[name] for row in rows if (row["method"], row["model"]) == (method, model)]

    figure, (left, right) = plt.subplots(1, 2, figsize=(7.6, 3.2), layout="constrained")
    for model, edge in zip(("from nothing", "whole model", "head", "adapters"), EDGES):
        sent, accuracy = of("FedAMP", model, "bytes"), of("FedAMP", model, "accuracy")
        left.scatter(np.divide(sent, 1e3), accuracy, color=edge, s=28)
        left.annotate(model, (sent[0] / 1e3, max(accuracy)), (0, 7), textcoords="offset points", ha="center")
    left.set(
        xscale="log", xlabel="KB that a client sends in a round", ylabel="accuracy", xlim=(1, 2000), title="FedAMP"
    )
    for method, label, edge in (
        ("FedAMP", "of the products A B", EDGES[0]),
        ("FedAMP, distances of A and B", "of A and B", EDGES[1]),
    ):
        share = np.mean(of(method, "adapters", "in_group"), axis=0)
        right.plot(np.arange(1, len(share) + 1), share, color=edge, label=label)
    right.set(xlabel="round", ylabel="weight in the own group", ylim=(0, 1.03), title="distances of adapters")
    right.legend(frameon=False, loc="lower right")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    save(figure, "adapters")


FIGURES = (one_round, stack, program, data, method, devices, convergence, strength, adapters)

if __name__ == "__main__":
    for draw in FIGURES:
        draw()
