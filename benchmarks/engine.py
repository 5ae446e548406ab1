"""What the in-process engine adds to a round: one number, CPU microseconds for 10 clients.

python benchmarks/engine.py
"""

from __future__ import annotations

import time

import numpy as np

from fedkin.engines import InProcess
from fedkin.federation import Federation
from fedkin.protocol import Algorithm, Ask, Field, Step

ROUNDS = 3000
REPLY = {"sums": np.zeros((10, 3, 22)), "counts": np.zeros((10, 3)), "loglik": np.zeros(10)}
SCHEMA = {
    "sums": Field(("K", "q"), "as FMLR sends"),
    "counts": Field(("K",), ""),
    "loglik": Field((), ""),
}
COMMON = {"coef": np.zeros((3, 5)), "sigma": np.zeros(())}


def nothing(clients, cache, settings, common, personal, memory, keys):
    return REPLY, memory


def program(roster, settings):
    for _ in range(ROUNDS):
        yield Ask("nothing", COMMON)
    return {}


def main() -> None:
    common = {"coef": Field(("K", "d"), ""), "sigma": Field((), "")}
    algorithm = Algorithm("idle", {"nothing": Step(nothing, SCHEMA, common)}, program)
    clients = Federation.from_groups(np.zeros((20, 2)), np.repeat(np.arange(10), 2))
    times = []
    for _ in range(5):
        begin = time.process_time()
        InProcess().run(algorithm, {}, clients)
        times.append((time.process_time() - begin) / ROUNDS * 1e6)
    print(f"engine, 10 clients, journal off: {np.median(times):.1f} microseconds a round (< 50)")


if __name__ == "__main__":
    main()
