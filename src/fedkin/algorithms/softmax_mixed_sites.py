"""What a site does in a mixed model of classes: heights, slopes and second derivatives; losses."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fedkin.algorithms.softmax_mixed_sets import LEAST_LOG, N_SETS
from fedkin.arrays import Arrays, Bools, Floats
from fedkin.federation import Federation
from fedkin.models.least_squares import upper_triangle
from fedkin.models.misfit import of_classes
from fedkin.models.softmax_left_out import (
    common_without,
    loss_from_common,
    loss_from_middle,
    loss_of_new_clients,
    loss_without_departures,
    own_departures,
)
from fedkin.models.softmax_mixed import (
    LabelledBlock,
    LabelledRows,
    find_modes,
    heights,
    probabilities,
    second_derivatives,
    slopes,
)
from fedkin.protocol import MISFIT, Field, Step, TracedReply

# What logarithms of variances that were kept as such may be off.
ROUNDING = 1e-9

Seen = tuple[Floats, Floats, Floats, Floats]
"""Of the clients of a block: U, height, slope in B downwards, second derivatives in B."""


class Told(NamedTuple):
    """What a site is told: B and log variances of every set (G, C, d each), and standardising."""

    coef: Floats
    logs: Floats
    mean: Floats
    spread: Floats

    @classmethod
    def of(cls, common: Arrays) -> Told:
        """From a message."""
        return cls(*(common[name] for name in cls._fields))

    def rows(self, clients: Federation, settings: Any) -> LabelledRows:
        """Rows in standardised columns."""
        scaled = (clients.X - self.mean) / self.spread
        inside = replace(clients, X=scaled)
        return LabelledRows.of(inside, self.coef.shape[1], settings.fit_intercept)

    def sets(self) -> list[tuple[Floats, Floats]]:
        """B and precisions of the departures of every set, (C, d) each."""
        return [(coef, np.exp(-logs)) for coef, logs in zip(self.coef, self.logs)]

    def departs(self) -> Bools:
        """In which sets clients depart at all, (G,): not where every variance is the least."""
        return np.asarray((self.logs > LEAST_LOG + ROUNDING).any(axis=(1, 2)))

    def first(self) -> list[int]:
        """The first set that has the B of each set, (G,)."""
        alike = (self.coef[:, None] == self.coef).all(axis=(2, 3))
        return [int(row.argmax()) for row in alike]


def prepare(clients: Federation, settings: Any) -> Arrays:
    """Nothing to prepare; labels must be numbers of classes."""
    if clients.y is None:
        raise ValueError("a mixed model needs a target y at every site")
    if (clients.y < 0).any() or (clients.y != np.round(clients.y)).any():
        raise ValueError("labels must be numbers of classes: 0, 1, 2, ...")
    return {}


# ------------------------------------------------------------------ client functions


def moments(clients, cache, settings, common, personal, memory, keys):
    """Sums and sums of squares of every column, and how many classes the site has seen."""
    owner, m = clients.owner, len(clients)

    def sums(values):
        # Of no rows at all NumPy counts in whole numbers.
        columns = [np.bincount(owner, column, minlength=m).astype(float) for column in values.T]
        return np.stack(columns, axis=1) if columns else np.zeros((m, 0))

    last = np.zeros(m)
    np.maximum.at(last, owner, clients.y)
    return {
        "sums": sums(clients.X),
        "squares": sums(clients.X**2),
        "rows": clients.sizes.astype(np.float64),
        "classes": last + 1.0,
    }, memory


def look(clients, cache, settings, common, personal, memory, keys):
    """Height, slope and second derivatives in B of every set, with the site's U gone along."""
    told = Told.of(common)
    modes = known_modes(told, memory, len(clients))
    n_sets, size = len(told.coef), told.coef[0].size
    upper = upper_triangle(size)
    height, pull = np.zeros((len(clients), n_sets)), np.zeros((len(clients), n_sets, size))
    information = np.zeros((len(clients), n_sets, len(upper[0])))
    departs = told.departs()
    for block in told.rows(clients, settings).blocks:
        who = block.clients
        for g, (coef, precision) in enumerate(told.sets()):
            start = modes[who, g]
            seen = departing if departs[g] else alike
            modes[who, g], height[who, g], slope, curve = seen(block, coef, precision, start)
            pull[who, g] = slope.reshape(len(who), -1)
            information[who, g] = curve[:, upper[0], upper[1]]
    reply = {"height": height, "pull": pull, "information": information}
    behind = partial(rows_of_sets, clients, settings, told, modes)
    return TracedReply(reply, behind), {"modes": in_all_places(modes)}


def departing(block: LabelledBlock, coef: Floats, precision: Floats, start: Floats) -> Seen:
    """With departures: the slope of the loss in B is -K U, and U goes along with B."""
    own, inverse = own_departures(block, coef, precision, start)
    flat = precision.ravel()
    curve = np.diag(flat) - inverse * np.outer(flat, flat)
    return own, heights(block, coef, precision, own), precision * own, curve


def alike(block: LabelledBlock, coef: Floats, precision: Floats, start: Floats) -> Seen:
    """Without departures."""
    own = np.zeros_like(start)
    share = probabilities(block.X @ coef.T)
    height = heights(block, coef, precision, own)
    return own, height, -slopes(block, share), second_derivatives(block, share)


def rows_of_sets(clients, settings, told, modes):
    """How much every row counts in what is told of every set, (N, G), by field.

    A row whose class is certain does not count in second derivatives, and one whose class is right
    not in slopes and departures: at coefficients chosen on purpose that is all but one.
    """
    ones = np.ones((len(clients.X), int(settings.fit_intercept)))
    table = np.concatenate([(clients.X - told.mean) / told.spread, ones], axis=1)
    own = (told.coef + modes)[clients.owner]
    score = np.einsum("nd,ngcd->ngc", table, own)
    share = probabilities(score)
    often = np.ones(len(table)) if clients.weights is None else clients.weights
    hits = (clients.y[:, None] == np.arange(share.shape[2])) * often[:, None]
    often = often[:, None]
    label = clients.y.astype(np.intp)[:, None, None]
    right = np.take_along_axis(share, np.broadcast_to(label, (*share.shape[:2], 1)), axis=2)[..., 0]
    missed = often * (1.0 - right)
    information = often * (1.0 - np.square(share).sum(axis=2))
    counted = {"information": information, **dict.fromkeys(("pull", "departed"), missed)}
    return {**counted, MISFIT: of_classes(score, hits, clients.owner)}


def known_modes(told: Told, memory: Any, m: int) -> Floats:
    """Departures (m, G, C, d) to look from: those of the last round; there is but one end."""
    n_sets, shape = len(told.coef), (m, *told.coef.shape)
    if memory and "modes" in memory and n_sets <= N_SETS:
        return np.array(memory["modes"][:, :n_sets])
    return np.zeros(shape)


def in_all_places(modes: Floats) -> Floats:
    """Departures of the sets that there are, and zeros: a site's memory keeps its shape."""
    room = max(N_SETS - modes.shape[1], 0)
    return np.pad(modes, ((0, 0), (0, room), (0, 0), (0, 0)))


def judge(clients, cache, settings, common, personal, memory, keys):
    """Loss of rows left out, and what departures say of their variances, for every set."""
    told = Told.of(common)
    shape = (len(clients), *told.coef.shape)
    loss, apart = np.zeros(shape[:2]), np.zeros(shape[:2])
    squares, determined = np.zeros(shape), np.zeros(shape)
    modes, departs, first = known_modes(told, memory, len(clients)), told.departs(), told.first()
    together = bool(common["together"])
    for block in told.rows(clients, settings).blocks:
        who, moved = block.clients, {}
        for g, (coef, precision) in enumerate(told.sets()):
            information = common["information"][g]
            if (together or not departs[g]) and first[g] not in moved:
                moved[first[g]] = common_without(block, coef, information)
            if not departs[g]:
                modes[who, g] = 0.0
                loss[who, g] = loss_without_departures(block, moved[first[g]])
                apart[who, g] = loss_of_new_clients(block, coef, information)
                squares[who, g], determined[who, g] = hardly_departing(block, coef, precision)
                continue
            own, inverse = own_departures(block, coef, precision, modes[who, g])
            modes[who, g] = own
            if together:
                loss[who, g] = loss_from_common(block, moved[first[g]], precision, own)
            else:
                loss[who, g] = loss_from_middle(block, coef, precision, own, inverse, information)
            apart[who, g], squares[who, g] = loss[who, g], own**2
            left = np.diagonal(inverse, axis1=1, axis2=2).reshape(own.shape)
            determined[who, g] = np.maximum(1.0 - left * precision, 0.0)
    often = np.ones(len(clients.X)) if clients.weights is None else clients.weights
    counted = np.bincount(clients.owner, often, minlength=len(clients)).astype(np.float64)
    losses = {"loss": loss, "apart": apart, "counted": counted}
    reply = {**losses, "departed": squares, "determined": determined}
    return TracedReply(reply, partial(rows_of_sets, clients, settings, told, modes)), memory


def hardly_departing(
    block: LabelledBlock, coef: Floats, precision: Floats
) -> tuple[Floats, Floats]:
    """Squares of departures, and how far rows determine them, where next to none are allowed."""
    share = probabilities(block.X @ coef.T)
    curve = (share * (1.0 - share) * block.present[..., None]).transpose(0, 2, 1) @ block.X**2
    return (slopes(block, share) / precision) ** 2, curve / (curve + precision)


def settle(clients, cache, settings, common, personal, memory, keys, fields):
    """The site learns and keeps its departure; it leaves only if it is asked for."""
    own = departures(clients, settings, Told.of(common), common["weights"])
    reply = {"rows": clients.sizes.astype(np.float64)}
    if fields:
        reply["departures"] = own
    return reply, {"departures": own, "known": np.ones(len(clients))}


def departures(clients: Federation, settings: Any, told: Told, weights: Floats) -> Floats:
    """From the mean B of sets to the mean of the models of every client by them, (m, C, d)."""
    out = np.zeros((len(clients), *told.coef.shape[1:]))
    departs = told.departs()
    for block in told.rows(clients, settings).blocks:
        own = np.zeros((len(block.clients), *told.coef.shape[1:]))
        for g, (coef, precision) in enumerate(told.sets()):
            if departs[g]:
                own = find_modes(block, coef, precision, own)
                out[block.clients] += weights[g] * own
    return out


# ------------------------------------------------------------------ what travels

_SETS = {
    "coef": Field(("sets", "c", "d"), "common coefficients of every set"),
    "logs": Field(("sets", "c", "d"), "log variances of the departures of every set"),
    "mean": Field(("f",), "of every column"),
    "spread": Field(("f",), "of every column"),
}
_ROWS = Field((), "number of rows", least=0.0, reveals="count")

STEPS = {
    "moments": Step(
        moments,
        {
            "sums": Field(("f",), "sum of every column", reveals="sums"),
            "squares": Field(("f",), "sum of squares of every column", reveals="sums"),
            "rows": _ROWS,
            "classes": Field((), "number of the last class at the site, and one"),
        },
    ),
    "look": Step(
        look,
        {
            "height": Field(("sets",), "loss of the site's rows with its departure's penalty"),
            "pull": Field(("sets", "p"), "its slope in the common coefficients"),
            "information": Field(("sets", "u"), "its second derivatives", reveals="products"),
        },
        _SETS,
    ),
    "judge": Step(
        judge,
        {
            "loss": Field(("sets",), "log loss of the site's rows, each left out"),
            "apart": Field(("sets",), "the same without departures, all of its rows left out"),
            "counted": Field((), "number of these rows, or the sum of their weights"),
            "departed": Field(("sets", "c", "d"), "squares of the site's departure"),
            "determined": Field(("sets", "c", "d"), "how far its rows determine it, 0 to 1"),
        },
        {
            **_SETS,
            "information": Field(("sets", "p", "p"), "about the common coefficients"),
            "together": Field((), "whether these are of all rows without departures"),
        },
    ),
    "settle": Step(
        settle,
        {"rows": _ROWS},
        {**_SETS, "weights": Field(("sets",), "of the sets in the mean of the site's models")},
        optional={"departures": Field(("c", "d"), "the site's departure", reveals="model")},
    ),
}
