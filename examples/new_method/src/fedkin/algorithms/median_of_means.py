"""Median of means: where the columns are, in one round, whatever a few sites send.

Every site sends the means of its columns; the server takes their median, column by column (Lugosi
and Mendelson 2019, section 2).

| paper | here |
|---|---|
| k blocks of the sample | sites: they are there already |
| Z_j, the mean of block j | `means`, all that leaves a site beside its number of rows |
| the median of Z_1, ..., Z_k | `center` |

Where we differ from the paper
- Sites have different numbers of rows, so a site counts as often as it has rows
  (`weights="rows"`): a site of two rows should not move the centre as much as one of thousands.
- Values beyond `clip` count as `clip`, at the site: one absurd row cannot spoil its site's mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedkin.arrays import Floats
from fedkin.protocol import Algorithm, Ask, Field, Program, Result, Roster, Step, over_roster
from fedkin.protocol.runs import About
from fedkin.settings import Number, Settings, one_of, setting
from fedkin.tables import Table


class MedianOfMeansSettings(Settings):
    """What can be set; `fedkin.MedianOfMeans` says what each does."""

    weights: str = setting("rows", one_of("rows", "equal"))
    clip: float | None = setting(None, Number(above=0.0, or_none=True), at_site=True)


@dataclass(frozen=True, kw_only=True, eq=False)
class MedianOfMeansResult(Result):
    """The centre (d,); rows and distance from it of every site, (m,), NaN if not heard."""

    center: Floats
    site_rows: Floats
    site_distances: Floats

    def title(self, about: About) -> str:
        """The fit in half a line."""
        return f"{len(about.sites)} sites, {len(self.center)} features"

    def tables(self, about: About) -> dict[str, Table]:
        """Features and sites."""
        features = {"feature": about.features, "center": self.center}
        sites = {"site": about.sites, "rows": self.site_rows, "distance": self.site_distances}
        return {"features": Table(features, "Features"), "sites": Table(sites, "Sites")}

    def account(self, about: About) -> list[str]:
        """What left the sites."""
        return ["Each site with two rows or more sent its number of rows and its columns' means."]


# ------------------------------------------------------------------ what leaves a client

# The mean of one row is that row: such a site stays silent.
ROWS = Field((), "number of rows", least_rows=2)
MEANS = Field(("d",), "means of the columns, of values clipped to `clip`", least_rows=2)


# ------------------------------------------------------------------ client functions


def _describe(clients, cache, settings, common, personal, memory, keys):
    """Rows (m,) and means (m, d) of all clients at once; also without rows never NaN."""
    means = np.zeros((len(clients), clients.n_features))
    for bucket in clients.buckets():
        rows = bucket.pack(clients.X)  # (k, d, width), zeros after a client's last row
        if settings.clip is not None:
            rows = np.clip(rows, -settings.clip, settings.clip)
        means[bucket.clients] = rows.sum(axis=2) / bucket.sizes[:, None]
    return {"rows": clients.sizes.astype(np.float64), "means": means}, memory


# ------------------------------------------------------------------ server program


def program(roster: Roster, settings: MedianOfMeansSettings) -> Program:
    """Ask once, take the median; whoever answered, in whatever order."""
    replies = yield Ask("describe", note="means")
    rows, means = replies["rows"], replies["means"]
    counts = rows if settings.weights == "rows" else np.ones_like(rows)
    center = np.quantile(means, 0.5, axis=0, weights=counts, method="inverted_cdf")
    distances = np.linalg.norm(means - center, axis=1)
    return MedianOfMeansResult(
        center=center,
        site_rows=over_roster(rows, replies.clients, len(roster)),
        site_distances=over_roster(distances, replies.clients, len(roster)),
    )


MEDIAN_OF_MEANS = Algorithm(
    name="median_of_means",
    settings=MedianOfMeansSettings,
    program=program,
    result=MedianOfMeansResult,
    steps={"describe": Step(_describe, {"rows": ROWS, "means": MEANS})},
)
