"""What the in-process engine adds to a round: a round in which ten clients do nothing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.measure import Effort, alone, race
from benchmarks.table import Promise, Row
from fedkin.engines import InProcess
from fedkin.federation import Federation
from fedkin.protocol import Algorithm, Ask, Field, Step
from fedkin.settings import NoSettings

ROUNDS = {"full": 3000, "quick": 1000, "toy": 10}
MOST_SECONDS = 50e-6
REPLY = {"sums": np.zeros((10, 3, 22)), "counts": np.zeros((10, 3)), "loglik": np.zeros(10)}
SCHEMA = {
    "sums": Field(("K", "q"), "as FMLR sends"),
    "counts": Field(("K",), ""),
    "loglik": Field((), ""),
}
COMMON = {"coef": np.zeros((3, 5)), "sigma": np.zeros(())}


def nothing(clients, cache, settings, common, personal, memory, keys):
    return REPLY, memory


def rows(effort: Effort) -> Iterator[Row]:
    n_rounds = ROUNDS[effort.name]

    def program(roster, settings):
        for _ in range(n_rounds):
            yield Ask("nothing", COMMON)
        return {}

    common = {"coef": Field(("K", "d"), ""), "sigma": Field((), "")}
    algorithm = Algorithm("idle", {"nothing": Step(nothing, SCHEMA, common)}, program)
    clients = Federation.from_groups(np.zeros((20, 2)), np.repeat(np.arange(10), 2))
    found = race({"engine": lambda: InProcess().run(algorithm, NoSettings(), clients)}, effort)[
        "engine"
    ]
    yield Row(
        "engine, round of 10 idle sites",
        found.seconds / n_rounds,
        promise=Promise("time", MOST_SECONDS),
        turns=found.turns,
    )


if __name__ == "__main__":
    alone(rows)
