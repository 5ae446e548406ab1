"""What can be set of ODCL, what goes together, and what leaves a site for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedkin.algorithms.odcl_groups import CLUSTERINGS
from fedkin.arrays import Indices
from fedkin.names import canonical_name
from fedkin.settings import FRACTION, Flag, Number, Settings, Whole, one_of, setting

LOSSES = one_of("squared", "logistic")
STRENGTH = Number(least=0.0, or_none=True, words=("auto",))
# What leaves a site, by a word for people, the smallest first; the first field names the step.
SENT = {
    "model": ("model",),
    "rows": ("model", "rows"),
    "covariance": ("model", "rows", "covariance"),
    "statistics": ("statistics",),
}
# The same where nobody asked for something: sums of products beside the model, which a site with
# too many coefficients leaves out.
SUMS = "sums"
ASKED = {**SENT, SUMS: ("model", "rows", "statistics")}
# What sites must send for an aggregate; for the others anything does.
ENOUGH = {
    "size": ("rows", "covariance", "statistics"),
    "precision": ("covariance", "statistics"),
    "statistics": ("statistics",),
}


@dataclass(frozen=True)
class _KnownClusters:
    """A cluster for every site, by name or in the order of the roster; numbered from 0."""

    def accept(self, name: str, value: Any) -> Any:
        """Numbers by canonical name, or an array of them."""
        if value is None:
            return None
        if not isinstance(value, Mapping):
            return np.unique(np.asarray(value), return_inverse=True)[1].reshape(-1)
        numbers = np.unique(list(value.values()), return_inverse=True)[1].tolist()
        return {canonical_name(site): number for site, number in zip(value, numbers)}


class OdclSettings(Settings):
    """What can be set; `fedkin.ODCL` says what each does.

    `given_clusters`: None seeks clusters; "one" for all sites, every site its "own", or the "true"
    ones need not be sought.
    """

    n_clusters: int | None = setting(None, Whole(or_none=True))
    loss: str = setting("squared", LOSSES, at_site=True)
    clustering: str = setting("kmeans", one_of(*CLUSTERINGS, "convex"))
    penalty: Any = setting("auto", Number(least=0.0, words=("auto", "clusterpath", "interval")))
    n_neighbors: int | None = setting(None, Whole(or_none=True))
    aggregate: str = setting(
        "auto", one_of("auto", "mean", "size", "precision", "statistics", "median")
    )
    robust: bool = setting(False, Flag())
    refine_rounds: int = setting(0, Whole(least=0))
    space: str = setting("auto", one_of("auto", "models", "predictions"))
    max_clusters: int | None = setting(None, Whole(or_none=True))
    alpha: float | str | None = setting(None, STRENGTH, at_site=True)
    fit_intercept: bool = setting(True, Flag(), at_site=True)
    solver: str = setting("exact", one_of("exact", "sgd"), at_site=True)
    n_steps: int = setting(1000, Whole(), at_site=True)
    batch_size: int = setting(1, Whole(), at_site=True)
    iterate: str = setting("last", one_of("last", "average"), at_site=True)
    radius: float | None = setting(None, Number(above=0.0, or_none=True), at_site=True)
    true_labels: Any = setting(None, _KnownClusters())
    send: str | None = setting(None, one_of(None, *SENT))
    fraction: float = setting(1.0, FRACTION)
    given_clusters: str | None = setting(None, one_of(None, "one", "own", "true"))

    @property
    def sent(self) -> str:
        """The word for what leaves a site: as asked for, or the least that serves the rest."""
        if self.send is not None:
            return self.send
        if self.aggregate == "statistics":
            return "statistics"
        open_number = self.n_clusters is None and self.given_clusters is None
        by_penalty = self.clustering == "convex" and self.penalty != "auto"
        weighs = self.aggregate == "precision" or (self.aggregate == "auto" and self.exact)
        if (open_number and not by_penalty) or weighs:
            return SUMS if self.exact and self.loss == "squared" else "covariance"
        return "rows" if self.aggregate == "size" else "model"

    @property
    def exact(self) -> bool:
        """Whether sites send the minimisers of their losses."""
        return self.solver == "exact"

    @property
    def averaging(self) -> str:
        """How clusters are averaged: as asked for, or the best that what is sent allows."""
        if self.aggregate != "auto":
            return self.aggregate
        if not self.exact:
            return "mean"
        return {"model": "mean", "rows": "size"}.get(self.sent, "precision")

    def true_clusters(self, names: Sequence[str]) -> Indices | None:
        """The true cluster of every site of a roster, (m,); None if they are not known."""
        known = self.true_labels
        if isinstance(known, Mapping):
            missing = [name for name in names if name not in known]
            if missing:
                raise ValueError(f"true_labels lacks site {missing[0]!r}; give it a cluster")
            return np.unique([known[name] for name in names], return_inverse=True)[1]
        if known is not None and len(known) != len(names):
            raise ValueError(f"true_labels has {len(known)} entries; there are {len(names)} sites")
        return known

    def check_together(self) -> None:
        """Complain about values that do not go together."""
        by_word = isinstance(self.penalty, str)
        if self.clustering == "convex" and self.n_clusters is not None and self.penalty != "auto":
            raise ValueError("give n_clusters or a penalty to convex clustering, not both")
        if self.n_neighbors is not None and by_word:
            raise ValueError("n_neighbors weighs pairs at one penalty: give penalty a number, too")
        if self.true_labels is None and by_word and self.penalty == "interval":
            raise ValueError("penalty='interval' is an oracle: it needs true_labels")
        if self.true_labels is None and self.given_clusters == "true":
            raise ValueError("who averages the true clusters is an oracle: it needs true_labels")
        if self.space == "predictions" and self.sent not in (SUMS, "statistics"):
            raise ValueError("space='predictions' needs send='statistics', and squared loss")
        self._check_what_is_sent()

    def _check_what_is_sent(self) -> None:
        if self.aggregate == "statistics" and self.loss == "logistic":
            raise ValueError(
                "aggregate='statistics' needs loss='squared': no sums stand for logistic rows; use "
                "'precision' or 'size'"
            )
        if self.aggregate == "statistics" and self.solver == "sgd":
            raise ValueError("aggregate='statistics' solves exactly; drop solver='sgd'")
        enough = ENOUGH.get(self.aggregate, tuple(SENT))
        if self.sent not in (*enough, SUMS):
            words = " or ".join(repr(word) for word in enough)
            raise ValueError(f"aggregate={self.aggregate!r} needs send={words}, not {self.send!r}")
        if self.send == "statistics" and (self.loss == "logistic" or self.solver == "sgd"):
            raise ValueError(
                "send='statistics' needs loss='squared' and solver='exact': the sums stand for no "
                "other fit"
            )
