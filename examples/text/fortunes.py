"""Clients with texts of their own from Debian's `fortunes`, as the CSV file that `classify.py` reads.

    apt-get install fortunes
    python examples/text/fortunes.py texts.csv

Six topics, 12 clients in three groups. Groups disagree about the names of topics: what is one topic to the first group
is another one to the second.
"""

import csv
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

FOLDER = Path("/usr/share/games/fortunes")
TOPICS = ("science", "law", "food", "politics", "computers", "work")
CLIENTS, GROUPS, OF_TOPIC = 12, 3, 6


def texts(topic: str) -> list[str]:
    """The sayings of a topic, one line each."""
    sayings = (FOLDER / topic).read_text(encoding="utf-8").split("\n%\n")
    return [" ".join(saying.split()) for saying in sayings if saying.strip()]


def rows(seed: int = 0) -> Iterator[tuple[str, str, str]]:
    """`(client, text, label)`, of every client as many texts of each topic."""
    rng = np.random.default_rng(seed)
    order = {topic: list(rng.permutation(texts(topic))) for topic in TOPICS}
    for client in range(CLIENTS):
        group = client * GROUPS // CLIENTS
        for number, topic in enumerate(TOPICS):
            label = TOPICS[(number + 2 * group) % len(TOPICS)]
            for _ in range(OF_TOPIC):
                yield f"group {group} client {client}", str(order[topic].pop()), label


def main() -> None:
    """The command."""
    with open(sys.argv[1], "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("client", "text", "label"))
        writer.writerows(rows())


if __name__ == "__main__":
    main()
