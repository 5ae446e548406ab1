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
- A site that did not answer is asked again, with everybody else, `max_rounds` times at most; after
  that the result stands without it, and later questions do not wait for it.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from fedkin.models import moments
from fedkin.protocol import (
    DEFAULT_BOUND,
    Algorithm,
    Ask,
    Field,
    Indices,
    Program,
    Replies,
    Result,
    Roster,
    Settings,
    Step,
)

DEFAULTS: dict[str, Any] = {"whiten": False, "n_groups": None, "robust": False, "max_rounds": 4}

# ------------------------------------------------------------------ what leaves a client

# With one row all of these tell the row, with two their difference: a site that minds sets its
# own `least_rows`.
CENTRE = Field(("d",), "means of the columns")
ROWS = Field((), "number of rows")
SUMS = Field(("d",), "sums of the columns about the shift")
SQUARES = Field(("d",), "sums of squares about the shift", bound=DEFAULT_BOUND**2)
SCATTER = Field(("d", "d"), "sums of products of standardised columns about the groups' means")
DEGREES = Field((), "number of rows less number of groups")

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
    labels = moments.ward_groups(clients, rows, settings["n_groups"] or 1, keys.clients)
    scatter, degrees = moments.within_scatter(clients, rows, labels)
    return {"scatter": scatter, "degrees": degrees.astype(np.float64)}, memory


# ------------------------------------------------------------------ server program


def program(roster: Roster, settings: Settings) -> Program:
    """Where, how wide and, if wanted, what shape."""
    replies = yield Ask("locate", note="where the data are")
    shift = np.median(replies["centre"], axis=0)
    everyone = np.arange(len(roster))
    found = yield from _collect(Ask("moments", {"shift": shift}, note="scales"), everyone, settings)
    result = _mean_and_scale(shift, found, len(roster), settings["robust"])
    if settings["whiten"]:
        common = {"mean": result["mean"], "scale": result["scale"]}
        ask = Ask("scatter", common, note="whitening")
        found = yield from _collect(ask, found.clients, settings)
        rounding = moments.rounding_of(result["mean"]) / result["scale"]
        result |= _whitening(found, rounding, len(roster), settings["robust"])
    return result


def _mean_and_scale(shift, found: Replies, n_clients: int, robust: bool) -> Result:
    true = found["rows"] >= 1
    sums = (found[name][true] for name in ("rows", "sums", "squares"))
    pool = moments.median_mean_and_variance if robust else moments.pooled_mean_and_variance
    offset, variance = pool(*sums)
    mean = shift + offset
    return {
        "mean": mean,
        "scale": moments.scale_of(variance, mean),
        "site_rows": _of_everyone(found["rows"], found.clients, n_clients),
    }


def _whitening(found: Replies, rounding, n_clients: int, robust: bool) -> Result:
    scatter, degrees = found["scatter"], np.maximum(found["degrees"], 0.0)
    used = moments.alike(scatter, degrees) if robust else np.ones(len(degrees), dtype=bool)
    if not degrees[used].sum() > 0:
        raise ValueError(
            "whitening needs a site with more rows than n_groups, and there is none; lower n_groups"
        )
    covariance = moments.pooled_covariance(scatter[used], degrees[used], rounding)
    return {
        "covariance": covariance,
        "whitening": moments.whitening_matrix(covariance),
        "site_degrees": _of_everyone(degrees, found.clients, n_clients),
        "used": _of_everyone(used, found.clients, n_clients) == 1,
    }


def _collect(ask: Ask, awaited: Indices, settings: Settings) -> Generator[Ask, Replies, Replies]:
    """Everybody's reply; the question is repeated while one of `awaited` has never answered it."""
    found = yield ask
    for _ in range(settings["max_rounds"] - 1):
        if np.isin(awaited, found.clients).all():
            break
        found = _joined(found, (yield ask))
    return found


def _joined(found: Replies, more: Replies) -> Replies:
    """The replies so far and those of clients not heard before, in roster order."""
    new = ~np.isin(more.clients, found.clients)
    clients = np.concatenate([found.clients, more.clients[new]])
    order = np.argsort(clients)
    both = {name: np.concatenate([found[name], more[name][new]])[order] for name in found}
    return Replies(clients[order], both)


def _of_everyone(values, clients: Indices, n_clients: int):
    everyone = np.full(n_clients, np.nan)
    everyone[clients] = values
    return everyone


STANDARDIZER = Algorithm(
    name="standardizer",
    program=program,
    defaults=DEFAULTS,
    client_settings=("n_groups",),
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
