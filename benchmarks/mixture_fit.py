"""Whole fits of mixtures inside sites: scikit-learn writer by writer, and the paper's own seconds.

44 writers of pen digits, 10 groups, whitened coordinates; and the shape of the paper's image data
(100 sites, 560 training rows each, 10 dimensions, 10 groups), generated.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks.measure import Effort, alone, race
from benchmarks.mixture_rounds import federation
from benchmarks.table import Row
from fedkin import FedEM, FedGrEM, LocalEM, PooledEM, Standardizer
from fedkin.datasets import load_pendigits

WRITERS = {"full": 44, "quick": 44, "toy": 2}
GROUPS = 10
MANY_SITES = {"full": 10_000, "quick": 1_000, "toy": 20}
IMAGE_SITES = 100
# FedGrEM paper, Tables 6, 7 and 8, no contamination: seconds on one core of a Xeon Gold 6226R.
PAPER_SECONDS = {
    "Table 6": {"FedGrEM": 47.07, "LocalEM": 26.01, "FedEM": 29.86, "PooledEM": 18.85},
    "Table 7": {"FedGrEM": 134.69},
    "Table 8": {"FedGrEM": 134.92},
}
OTHER_MACHINE = (
    "The paper's seconds, another machine (one core of a Xeon Gold 6226R, 2.9 GHz) and its own "
    "program, starts and stopping rule; beside ours for scale only."
)
SAME_SHAPE = "Generated data of the shape of its images; " + OTHER_MACHINE[0].lower()
SAME_SHAPE += OTHER_MACHINE[1:]


def pen_digits(n_writers: int):
    """Whitened rows of some writers, and the digits of each."""
    shipped = load_pendigits()
    plain = shipped.federation().take(np.arange(n_writers))
    digits = np.split(shipped.digit[plain.rows], plain.offsets[1:-1])
    return Standardizer(whiten=True, n_groups=GROUPS).fit(plain).transform(plain), digits


def per_writer(data):
    from sklearn.mixture import GaussianMixture

    made = {"n_components": GROUPS, "covariance_type": "spherical", "n_init": 10}
    rows = [data.client(k)[0] for k in range(data.n_clients)]
    return [GaussianMixture(**made, random_state=0).fit(X) for X in rows]


def likeness(digits, labels) -> float:
    """Mean adjusted Rand index of a writer's groups and digits."""
    from sklearn.metrics import adjusted_rand_score

    return float(np.mean([adjusted_rand_score(d, found) for d, found in zip(digits, labels)]))


def rows(effort: Effort) -> Iterator[Row]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data, digits = pen_digits(WRITERS[effort.name])
        yield from against_sklearn(data, digits, effort)
        yield from beside_the_paper(data.split(0.2, random_state=0)[0], effort)
        yield from many_sites(effort)


def against_sklearn(data, digits, effort) -> Iterator[Row]:
    found = race(
        {
            "FedGrEM": lambda: FedGrEM(GROUPS, random_state=0).fit(data),
            "FedGrEM from Ward": lambda: FedGrEM(GROUPS, init="ward", random_state=0).fit(data),
            "LocalEM": lambda: LocalEM(GROUPS, random_state=0).fit(data),
            "peer": lambda: per_writer(data),
        },
        effort,
    )
    peer = found.pop("peer")
    fits = enumerate(peer.result)
    theirs = likeness(digits, [fit.predict(data.client(k)[0]) for k, fit in fits])
    for name, timing in found.items():
        ours = likeness(
            digits, np.split(timing.result.predict(data.X, data.groups), data.offsets[1:-1])
        )
        yield Row(
            f"{name} fit, pen digits, {data.n_clients} writers",
            timing.seconds,
            "scikit-learn GaussianMixture per writer",
            peer.seconds,
            turns=timing.turns,
            peer_turns=peer.turns,
            note=f"NOT the same work: one fixed covariance against a variance a group (spherical, "
            f"10 k-means starts). Adjusted Rand index of groups and digits: {name} {ours:.3f}, "
            f"scikit-learn {theirs:.3f}.",
        )


def beside_the_paper(data, effort) -> Iterator[Row]:
    """Rows for the tables whose size is ours: pen digits, and the images' shape at full effort."""
    if data.n_clients < WRITERS["full"]:
        return
    made = {"n_components": GROUPS, "random_state": 0}
    works = {
        ("Table 6", "FedGrEM"): lambda: FedGrEM(shrinkage="paper", **made).fit(data),
        ("Table 6", "LocalEM"): lambda: LocalEM(**made).fit(data),
        ("Table 6", "FedEM"): lambda: FedEM(**made).fit(data),
        ("Table 6", "PooledEM"): lambda: PooledEM(**made).fit(data),
    }
    if effort.name == "full":
        images, _ = federation(IMAGE_SITES, 560, False, GROUPS, 10)
        works["Table 7", "FedGrEM"] = lambda: FedGrEM(shrinkage="paper", **made).fit(images)
    found = race(works, effort)
    if ("Table 7", "FedGrEM") in found:
        found["Table 8", "FedGrEM"] = found["Table 7", "FedGrEM"]
    for (table, name), timing in found.items():
        pen = table == "Table 6"
        yield Row(
            f"{name} fit, " + ("pen digits, 80 %" if pen else "100 x ~560, R=10, d=10"),
            timing.seconds,
            f"the paper, {table}",
            PAPER_SECONDS[table][name],
            turns=timing.turns,
            note=OTHER_MACHINE if pen else SAME_SHAPE,
        )


def many_sites(effort) -> Iterator[Row]:
    """Covariances of groups at thousands of sites in one process, and one mixture of all rows."""
    from sklearn.mixture import GaussianMixture

    n_sites, n_groups = MANY_SITES[effort.name], 5
    data, _ = federation(n_sites, 50, False, n_groups, 10)
    for kind in ("full", "diag"):
        of_all = GaussianMixture(n_groups, covariance_type=kind, random_state=0, max_iter=1)
        of_sites = FedGrEM(n_groups, covariance_type=kind, random_state=0)
        works = {"ours": partial(of_sites.fit, data), "peer": partial(of_all.fit, data.X)}
        found = race(works, effort)
        fitted = found["ours"].result
        yield Row(
            f"FedGrEM fit, {kind}, {n_sites} x ~50, R={n_groups}, d=10",
            found["ours"].seconds,
            "scikit-learn GaussianMixture, all rows, one iteration",
            found["peer"].seconds,
            turns=found["ours"].turns,
            peer_turns=found["peer"].turns,
            note=f"NOT the same work: starts side by side and {fitted.n_iter_} rounds of groups "
            "that every site has its own of, against k-means and one step of one mixture.",
        )


if __name__ == "__main__":
    alone(rows)
