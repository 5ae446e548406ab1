"""Common means and scales of the columns, and optionally a common whitening within groups.

What scikit-learn's StandardScaler computes from all rows together, from sums:

| round | a site sends | the server makes |
|---|---|---|
| locate | its column means | a common shift, their median |
| moments | rows, sums and sums of squares about the shift | mean and scale |
| scatter (`whiten`) | products about its own groups' means, summed | covariance within groups, W |

Groups are found at the site, by Ward's criterion on its standardised rows, and stay there: rows of
different sites are never compared, so the groups need not mean the same at two sites.

Why so
- About a shift in the midst of the data, sums of squares of far-away data stay exact. The shift
  need not be: any will do, so the first round does not wait for anybody. Sums about a common
  shift are also additive, so that masks which cancel in the total would serve.
- Within groups, not in all: whitening by the covariance of all rows would shrink the very
  directions in which groups differ.
- `robust`: medians over sites; sites with an odd scatter are left out. Values of 1e6 at a few
  sites then change the others' result little (`models.moments`).
- A site that did not answer is asked again, with everybody else, four times at most; after
  that the result stands without it, and later questions do not wait for it.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np

from fedkin.arrays import Array, Bools, Floats, Indices
from fedkin.models import moments
from fedkin.protocol import (
    DEFAULT_BOUND,
    Algorithm,
    Ask,
    Field,
    LastReplies,
    Program,
    Replies,
    Result,
    Roster,
    Step,
    over_roster,
)
from fedkin.protocol.runs import About
from fedkin.settings import Flag, Settings, Whole, setting
from fedkin.tables import Table

# The most times that a question is put while somebody has not answered it.
MOST_TRIES = 4


class StandardizerSettings(Settings):
    """What can be set; `fedkin.Standardizer` says what each does."""

    whiten: bool = setting(False, Flag())
    n_groups: int | None = setting(None, Whole(or_none=True), at_site=True)
    robust: bool = setting(False, Flag())


@dataclass(frozen=True, kw_only=True, eq=False)
class StandardizerResult(Result):
    """Means and scales (d,); with `whiten` the covariance within groups and its whitening."""

    for_all = ("mean", "scale", "covariance", "whitening")
    for_one = ("site_rows",)

    mean: Floats
    scale: Floats
    site_rows: Floats
    covariance: Floats | None = None
    whitening: Floats | None = None
    site_degrees: Floats | None = None
    used: Bools | None = None

    @property
    def heard(self) -> Bools:
        """Sites that answered, (m,)."""
        return np.isfinite(self.site_rows)

    @property
    def odd(self) -> Bools:
        """Sites that were left out of the whitening, (m,)."""
        return self.heard & (~self.used if self.used is not None else False)

    @property
    def degrees(self) -> int | None:
        """Rows beyond the groups behind the covariance; None if there is none."""
        if self.site_degrees is None:
            return None
        return int(np.nansum(self.site_degrees[self.used]))

    def title(self, about: About) -> str:
        """The fit in half a line."""
        n_rows = np.nansum(self.site_rows)
        return f"{len(about.sites)} sites, {len(self.mean)} features, {n_rows:,.0f} rows"

    def tables(self, about: About) -> dict[str, Table]:
        """Features and sites."""
        features = {"feature": about.features, "mean": self.mean, "scale": self.scale}
        sites: dict[str, Array] = {"site": about.sites, "rows": self.site_rows}
        if self.covariance is not None and self.site_degrees is not None:
            features["scale within groups"] = self.scale * np.sqrt(np.diagonal(self.covariance))
            sites |= {"rows beyond groups": self.site_degrees, "odd": self.odd}
        return {"features": Table(features, "Features"), "sites": Table(sites, "Sites")}

    def account(self, about: About) -> list[str]:
        """What left the sites."""
        account = [
            "Each site sent its number of rows and, for every column, its mean, sum and sum of "
            "squares about a common shift; a site with one row thereby sent that row."
        ]
        if self.covariance is not None:
            account.append(
                "Each site also sent one matrix of sums of products about the means of its "
                "groups, and its number of rows less that of its groups. Groups stayed at the site."
            )
        return account


# ------------------------------------------------------------------ what leaves a client

# With one row all of these tell the row, with two their difference: the disclosure rules withhold
# them from so few.
CENTRE = Field(("d",), "means of the columns", reveals="sums")
ROWS = Field((), "number of rows", least=0.0, reveals="count")
SUMS = Field(("d",), "sums of the columns about the shift", reveals="sums")
SQUARES = Field(
    ("d",), "sums of squares about the shift", bound=DEFAULT_BOUND**2, least=0.0, reveals="sums"
)
SCATTER = Field(
    ("d", "d"),
    "sums of products of standardised columns about the groups' means",
    reveals="products",
)
DEGREES = Field((), "number of rows less number of groups", reveals="count")

SHIFT = Field(("d",), "where the columns are, roughly")
MEAN = Field(("d",), "common means")
SCALE = Field(("d",), "common scales")


# ------------------------------------------------------------------ client functions


def _locate(clients, cache, settings, common, personal, memory, keys):
    sums, _ = moments.sums_about(clients, np.zeros(clients.n_features))
    return {"centre": sums / np.maximum(clients.sizes, 1)[:, None]}, memory


def _moments(clients, cache, settings, common, personal, memory, keys):
    sums, squares = moments.sums_about(clients, common["shift"])
    return {"rows": clients.sizes.astype(np.float64), "sums": sums, "squares": squares}, memory


def _scatter(clients, cache, settings, common, personal, memory, keys):
    """Group the standardised rows at the site; only the scatter within groups leaves."""
    rows = (clients.X - common["mean"]) / common["scale"]
    labels = moments.ward_groups(clients, rows, settings.n_groups or 1, keys.clients)
    scatter, degrees = moments.within_scatter(clients, rows, labels)
    return {"scatter": scatter, "degrees": degrees.astype(np.float64)}, memory


# ------------------------------------------------------------------ server program


def program(roster: Roster, settings: StandardizerSettings) -> Program:
    """Where, how wide and, if wanted, what shape."""
    replies = yield Ask("locate", note="where the data are")
    shift = np.median(replies["centre"], axis=0)
    m = len(roster)
    replies = yield from _collect(Ask("moments", {"shift": shift}, note="scales"), np.arange(m), m)
    result = _mean_and_scale(shift, replies, m, settings.robust)
    if settings.whiten:
        common = {"mean": result.mean, "scale": result.scale}
        ask = Ask("scatter", common, note="whitening")
        replies = yield from _collect(ask, replies.clients, m)
        result = _whitened(result, replies, m, settings.robust)
    return result


def _mean_and_scale(
    shift: Floats, replies: Replies, n_clients: int, robust: bool
) -> StandardizerResult:
    true = replies["rows"] >= 1
    sums = (replies[name][true] for name in ("rows", "sums", "squares"))
    pool = moments.median_mean_and_variance if robust else moments.pooled_mean_and_variance
    offset, variance = pool(*sums)
    mean = shift + offset
    return StandardizerResult(
        mean=mean,
        scale=moments.scale_of(variance, mean),
        site_rows=over_roster(replies["rows"], replies.clients, n_clients),
    )


def _whitened(
    result: StandardizerResult, replies: Replies, n_clients: int, robust: bool
) -> StandardizerResult:
    scatter, degrees = replies["scatter"], np.maximum(replies["degrees"], 0.0)
    used = moments.alike(scatter, degrees) if robust else np.ones(len(degrees), dtype=bool)
    if not degrees[used].sum() > 0:
        raise ValueError(
            "whitening needs a site with more rows than n_groups, and there is none; lower n_groups"
        )
    rounding = moments.rounding_of(result.mean) / result.scale
    covariance = moments.pooled_covariance(scatter[used], degrees[used], rounding)
    return replace(
        result,
        covariance=covariance,
        whitening=moments.whitening_matrix(covariance),
        site_degrees=over_roster(degrees, replies.clients, n_clients),
        used=over_roster(used, replies.clients, n_clients, missing=False),
    )


def _collect(ask: Ask, awaited: Indices, n_clients: int) -> Generator[Ask, Replies, Replies]:
    """Everybody's reply; the question is repeated while one of `awaited` has never answered it."""
    last = LastReplies(n_clients)
    for _ in range(MOST_TRIES):
        replies = yield ask
        last.hear(replies)
        if last.heard[awaited].all():
            break
    clients = np.flatnonzero(last.heard)
    return Replies(clients, {name: last[name][clients] for name in replies})


STANDARDIZER = Algorithm(
    name="standardizer",
    settings=StandardizerSettings,
    program=program,
    result=StandardizerResult,
    steps={
        "locate": Step(_locate, {"centre": CENTRE}),
        "moments": Step(
            _moments, {"rows": ROWS, "sums": SUMS, "squares": SQUARES}, {"shift": SHIFT}
        ),
        "scatter": Step(
            _scatter,
            {"scatter": SCATTER, "degrees": DEGREES},
            {"mean": MEAN, "scale": SCALE},
        ),
    },
)
