"""The server's half of the methods for hidden classes inside every site.

They differ in one thing: what the server makes of the sites' estimates. A `Desk` keeps what the
server knows of every site, `begin` fills it, `rounds` alternates between improving at the sites
and `combine` at the server until nothing moves. A method is a Desk with a `combine` of its own.

A site that is not asked or not heard keeps its place: the server uses its last estimate. One that
missed the start begins, when it first answers, at what the server then sends it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkin.algorithms import mixture_starts
from fedkin.algorithms.mixtures import UNKNOWN_VARIANCE, names_of
from fedkin.alignment import align
from fedkin.models.gaussian_mixture import ROUNDING
from fedkin.protocol import Ask, Program, Replies, Result, Roster, Settings

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

# Sites with this many times the median site's scatter a row, or less than one over this many, have
# no say in a common covariance. R components fitted to n rows leave 1 - R/n of the scatter, so that
# an honest site falls short only with fewer than 1.5 R rows; it would make the covariance smaller
# than it is, and is missed by no more than these rows.
ODD_SCATTER = 3.0
# No site counts for more rows than this many times the median site: a count is a claim that nobody
# can check. A site's pull on the centre grows as the root of its rows, to that of 4.5 sites here;
# what an honest site of more rows would add to a centre or a covariance of all is little by then.
MOST_ROWS = 20.0
# Eigenvalues of a common covariance are at least this share of their mean.
SMALLEST_EIGENVALUE_SHARE = 1e-6
# A mean variance below this share of that between a site's components is rounding, whatever the
# unit of the data.
NO_SCATTER = 1e-12
# Rounds in which a common covariance, noise or the centres may still be settling.
FIRST_ROUNDS = 1
# With a share of the sites asked each round, nothing may move for so many turns of all sites: one
# that could still move has then been asked with probability 1 - e^-3.
TURNS_AT_REST = 3.0


class Desk(ABC):
    """What the server knows of every site: last estimates, how sure they are, what it sends."""

    def __init__(self, settings: Settings, m: int, n_components: int, p: int) -> None:
        self.settings = settings
        self.estimates = np.zeros((m, n_components, p))
        self.shared = np.zeros((m, n_components, p))
        self.centers: Floats | None = None
        self.heard: Bools = np.zeros(m, dtype=bool)
        self.rows = np.zeros(m)
        self.variances = np.full((m, n_components), UNKNOWN_VARIANCE)
        self.weights = np.full((m, n_components), 1.0 / n_components)
        self.shared_weights = self.weights.copy()
        self.order = np.tile(np.arange(n_components), (m, 1))
        self.ambiguous: Bools = np.zeros(m, dtype=bool)
        scattered = p if "scatter" in self.step("improve") else 0
        self.scatter = np.zeros((m, scattered, scattered))
        self.covariance = np.empty((0, 0))
        self.noise = np.empty(0)
        self.residual = np.full(m, np.nan)
        self.outlier_score = np.full(m, np.nan)
        self.between = np.full(n_components, np.nan)
        self.halvings = np.zeros(m)

    # ------------------------------------------------------------ what a method decides

    @abstractmethod
    def combine(self, number: int) -> None:
        """Set `shared` (what every site gets) and `centers` from the estimates."""

    @staticmethod
    def wanted(settings: Settings) -> dict[str, bool]:
        """What else leaves the sites besides components."""
        return {"scatter": has_common_covariance(settings), "residual": learns_noise(settings)}

    # ------------------------------------------------------------ what goes out

    def step(self, name: str) -> str:
        """The step that sends what this fit needs, and no more."""
        return names_of(name, self.wanted(self.settings))

    def common(self) -> dict[str, Floats]:
        """The covariance and the noise that all sites share, if they do."""
        return {"covariance": self.covariance, "noise": self.noise}

    def personal(self) -> dict[str, Any]:
        """Components, weights if the server sends them, and the order a site has to learn."""
        sent = self.shared_weights[:, : None if self.settings.get("share_weights") else 0]
        return {"components": self.shared, "order": self.order, "weights": sent}

    # ------------------------------------------------------------ what comes in

    def hear(self, replies: Replies) -> None:
        """Note what the sites that answered sent."""
        who = replies.clients
        self.heard[who] = True
        # These sites have put their memory in our order; the others are told again.
        self.order[who] = np.arange(self.order.shape[1])
        self.estimates[who] = replies["components"]
        self.note(replies)

    def note(self, replies: Replies) -> None:
        """Whatever came besides components, in the order of this desk."""
        who = replies.clients
        for name in ("rows", "halvings", "variances", "weights", "scatter", "residual"):
            if name in replies:
                getattr(self, name)[who] = replies[name]
        if "scatter" in replies:
            self.pool_covariance()
        if "residual" in replies:
            known = self.residual[np.isfinite(self.residual)]
            self.noise = np.sqrt(np.median(known, keepdims=True))

    def counted_rows(self) -> Floats:
        """Rows for which every site counts, (m,): those it claims, up to MOST_ROWS."""
        known = self.rows[self.rows > 0]
        return np.clip(self.rows, 0.0, MOST_ROWS * np.median(known) if known.size else 0.0)

    def pool_covariance(self) -> None:
        """The covariance common to all sites and components, from every site's scatter."""
        known, rows = self.rows > 0, self.counted_rows()
        trace = np.trace(self.scatter, axis1=1, axis2=2) / np.maximum(self.rows, 1.0)
        typical = np.median(trace[known])
        used = known & (trace <= ODD_SCATTER * typical) & (trace >= typical / ODD_SCATTER)
        share = (rows[used] / self.rows[used])[:, None, None]
        pooled = (share * self.scatter[used]).sum(axis=0) / rows[used].sum()
        values, vectors = np.linalg.eigh(pooled)
        # As many groups as rows leave no scatter but rounding: nothing is known, so the identity.
        some = values.mean() > self.no_scatter()
        floor = SMALLEST_EIGENVALUE_SHARE * values.mean() if some else 1.0
        self.covariance = (vectors * np.maximum(values, floor)) @ vectors.T

    def no_scatter(self) -> float:
        """A mean variance that the median site's components show to be rounding."""
        found = self.estimates[self.heard]
        between = np.median(found.var(axis=1).mean(axis=1))
        size = np.median((found**2).mean(axis=(1, 2)))
        return float(NO_SCATTER * between + ROUNDING**2 * size)

    # ------------------------------------------------------------ the end

    def result(self, replies: Replies, history: Floats, converged: bool) -> Result:
        """Named arrays; NaN stands for what is not known."""
        assert self.centers is not None
        loglik = np.full(len(self.rows), np.nan)
        loglik[replies.clients] = replies["loglik"]
        return {
            "components": self.shared,
            "centers": self.centers,
            "covariance": self.covariance,
            "noise": self.noise,
            "between_variance": self.between,
            "outlier_score": self.outlier_score,
            "ambiguous": self.ambiguous,
            "heard": self.heard,
            "halvings": self.halvings,
            "site_loglik": loglik,
            "site_rows": self.rows,
            "history_change": history,
            "converged": np.array(converged),
        }


def has_common_covariance(settings: Settings) -> bool:
    """Whether one covariance is learnt for all sites."""
    return bool(settings["family"] == "gaussian" and settings["covariance_type"] == "tied")


def learns_noise(settings: Settings) -> bool:
    """Whether the noise of the regressions is one for all sites and not given."""
    shared = settings["family"] == "regression" and settings["shared_noise"]
    return bool(shared and settings["sigma"] is None)


# ------------------------------------------------------------------ the program of them all


def program(desk: type[Desk], roster: Roster, settings: Settings) -> Program:
    """Start, align; then improve at the sites and combine at the server until nothing moves."""
    opened = yield from begin(desk, roster, settings)
    return (yield from rounds(opened))


def rounds(desk: Desk) -> Program:
    """Improve and combine until nothing moves; then the sites settle their weights."""
    settings, history, converged, at_rest = desk.settings, [], False, 0
    for number in range(1, settings["max_rounds"] + 1):
        before = desk.shared.copy()
        desk.combine(number)
        change = largest_change(before, desk.shared)
        history.append(change)
        at_rest = at_rest + 1 if number > FIRST_ROUNDS and change <= settings["tol"] else 0
        if at_rest >= rounds_at_rest(settings):
            converged = True
            break
        replies = yield Ask(
            desk.step("improve"),
            desk.common(),
            desk.personal(),
            fraction=settings["fraction"],
            note=f"moved {change:.1e}",
        )
        desk.hear(replies)
    else:
        desk.combine(settings["max_rounds"] + 1)
    replies = yield Ask("settle", desk.common(), desk.personal(), note="sites settle their weights")
    return desk.result(replies, np.array(history), converged)


def largest_change(before: Floats, after: Floats) -> float:
    """The largest change of a site's numbers (m, R, p), relative to its size or the median site's.

    Relative to the largest number of all, one site with huge values would end everybody's fit.
    """
    size = np.abs(after).max(axis=(1, 2))
    moved = np.abs(after - before).max(axis=(1, 2))
    return float((moved / np.maximum(np.maximum(size, np.median(size)), 1e-300)).max())


def rounds_at_rest(settings: Settings) -> int:
    """For so many rounds nothing may move before a fit counts as settled."""
    fraction = settings["fraction"]
    return 1 if fraction >= 1 else int(np.ceil(TURNS_AT_REST / fraction))


def begin(desk: type[Desk], roster: Roster, settings: Settings) -> Generator[Ask, Replies, Desk]:
    """Every site's first estimates in one order, or given or shared ones."""
    init = settings["init"]
    if not isinstance(init, str):
        return (yield from _from_given(desk, roster, settings, np.asarray(init, dtype=float)))
    if init == "federated":
        shared, sigma = yield from mixture_starts.federated_start(roster, settings)
        return (yield from _from_given(desk, roster, settings, shared, np.array([sigma])))
    name = names_of("start", desk.wanted(settings))
    replies = yield Ask(name, note="sites fit alone")
    who, found = replies.clients, replies["components"]
    opened = desk(settings, len(roster), *found.shape[1:])
    aligned = align(found, settings["align"])
    order = aligned.permutations
    opened.order[who] = order
    opened.ambiguous[who] = aligned.ambiguous
    opened.heard[who] = True
    opened.estimates[who] = np.take_along_axis(found, order[..., None], axis=1)
    turned = {
        name: np.take_along_axis(replies[name], order, axis=1)
        for name in ("variances", "weights")
        if name in replies
    }
    opened.note(Replies(who, {**replies.arrays, **turned}))
    if settings.get("second_start"):
        yield from _start_again(opened)
    opened.estimates[~opened.heard] = np.median(opened.estimates[opened.heard], axis=0)
    opened.shared = opened.estimates.copy()
    return opened


def _start_again(desk: Desk) -> Generator[Ask, Replies, None]:
    """Sites fit once more, also from the median of all; then they are aligned again."""
    centers = np.median(desk.estimates[desk.heard], axis=0)
    common = {**desk.common(), "centers": centers}
    replies = yield Ask(
        desk.step("start_again"), common, {"order": desk.order}, note="sites fit again"
    )
    desk.hear(replies)
    who = replies.clients
    aligned = align(desk.estimates[who], desk.settings["align"])
    order = aligned.permutations
    desk.order[who], desk.ambiguous[who] = order, aligned.ambiguous
    for name in ("estimates", "variances", "weights"):
        table = getattr(desk, name)
        turn = order[..., None] if table.ndim == 3 else order
        table[who] = np.take_along_axis(table[who], turn, axis=1)


def _from_given(
    desk: type[Desk],
    roster: Roster,
    settings: Settings,
    components: Floats,
    noise: Floats | None = None,
) -> Generator[Ask, Replies, Desk]:
    """Everybody begins at the same components (R, p), or at given ones per site (m, R, p)."""
    opened = desk(settings, len(roster), *components.shape[-2:])
    opened.shared = np.array(np.broadcast_to(components, opened.shared.shape))
    opened.estimates = opened.shared.copy()
    if noise is not None:
        opened.noise = noise
    if has_common_covariance(settings):
        # Not wider than the components lie apart: in small units all rows would look alike.
        between = float(components.var(axis=-2).mean())
        opened.covariance = (min(between, 1.0) or 1.0) * np.eye(components.shape[-1])
    replies = yield Ask(
        opened.step("improve"), opened.common(), opened.personal(), note="first step"
    )
    opened.hear(replies)
    return opened
