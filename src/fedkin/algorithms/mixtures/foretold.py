"""How likely labels are that were left out: what a site tells of FedGrEM's classes, twice in a run.

The site gets what is common without its own part of the sites (`sureness`), in several ways that
are compared: by all rows, and by labelled rows alone. Bent by its labels of other folds, and as
they are, these foretell its labels: at several temperatures (`surprise`), and then two ways blended
by several shares, each at its temperature (`blended`).
"""

from __future__ import annotations

from functools import partial

import numpy as np

from fedkin.models import shaped_mixture as shaped
from fedkin.models.misfit import of_groups
from fedkin.protocol import MISFIT, Field, TracedReply
from fedkin.shrinkage import borrowed

# In how many folds a site's labels are left out.
FOLDS = 5
# Shares of the second of two ways.
SHARES = np.linspace(0.0, 1.0, 5)

# ------------------------------------------------------------------ what leaves a client

# What is common without the part of the sites that a site is of: it hears of no other part, whose
# sites it could tell by the difference. W ways side by side.
WITHOUT = {
    "centers": Field(("W", "R", "d"), "centres of the groups, in each way"),
    "between": Field(("W", "R", "d", "d"), "their covariances between sites"),
    "covariances": Field(("W", "R", "d", "d"), "common covariances"),
    "degrees": Field(("W", "R"), "degrees of freedom of sites' own covariances"),
    "concentration": Field(("W", "R"), "rows that stand for the common weights"),
    "n_estimates": Field(("W",), "groups of sites that were compared"),
    "known": Field(("W", "R"), "as from how many rows common covariances are known"),
    "shift": Field(("W", "d", "d"), "how groups of a site are moved alike; zero if they are not"),
    "alike": Field(("W",), "one if sites have no covariances of their own"),
    "part": Field((), "the number of the part"),
    "own_weights": Field((), "one if weights are not shared"),
}
WITH_TEMPERATURES = {
    **WITHOUT,
    "temperatures": Field((2, "W"), "temperatures, of rows foretold by the site's others and not"),
}
_FORETOLD = "log probability of left-out labels by the site's others and not, "
N_TRIED = len(shaped.TEMPERATURES)
FORETOLD = {
    "foretold": Field((2, "W", N_TRIED), _FORETOLD + "in each way at each temperature", empty=0.0)
}
BLENDED = {
    "blended": Field((2, len(SHARES)), _FORETOLD + "with each share of the second way", empty=0.0)
}

# ------------------------------------------------------------------ client functions


def surprise(clients, cache, settings, common, personal, memory, keys):
    """How likely left-out labels are by what is common elsewhere: bent by the others, and not."""
    labels, m = _labels_of(clients), len(cache.sizes)
    joints = _left_out_joints(clients, cache, settings, personal)
    found = np.empty((m, *joints.shape[:2], N_TRIED))
    for b, w in np.ndindex(joints.shape[:2]):
        found[:, b, w] = shaped.foretold(joints[b, w], labels, clients.owner, m)
    behind = partial(_rows_foretold, clients, cache, settings, personal, {"foretold": found})
    return TracedReply({"foretold": found}, behind), memory


def blended(clients, cache, settings, common, personal, memory, keys):
    """The same with two ways blended."""
    labels, m = _labels_of(clients), len(cache.sizes)
    joints = _left_out_joints(clients, cache, settings, personal)
    found = np.empty((m, 2, len(SHARES)))
    for b, two in enumerate(joints):
        # Whoever asks may not sharpen: that would tell rows next to a border apart.
        temperatures = np.maximum(personal["temperatures"][clients.owner, b], 1.0)
        cooled = two / temperatures.T[..., None]
        found[:, b] = shaped.foretold_together(cooled, SHARES, labels, clients.owner, m)
    behind = partial(_rows_foretold, clients, cache, settings, personal, {"blended": found})
    return TracedReply({"blended": found}, behind), memory


def _labels_of(clients):
    """Numbers of the rows' classes, (N,); negative where unknown."""
    return np.full(len(clients.X), -1.0) if clients.y is None else clients.y


def label_folds(labels, owner):
    """The fold of every label (N,), so that each has labels of most classes of every client."""
    order = np.lexsort((labels, labels < 0, owner))
    first = np.searchsorted(owner[order], owner[order])
    fold = np.empty(len(labels), dtype=np.intp)
    fold[order] = (np.arange(len(labels)) - first) % FOLDS
    return fold


def _left_out_joints(clients, cache, settings, without):
    """log(weight * density) of rows and groups (2, W, N, R), labels of their own fold left out.

    First bent by the site's other labels, then as at a site that nothing is known of.
    """
    labels = _labels_of(clients)
    fold, nothing = label_folds(labels, clients.owner), np.full(len(labels), -1.0)
    n_ways, n_groups = without["centers"].shape[1:3]
    found = np.zeros((2, n_ways, len(labels), n_groups))
    for w in range(n_ways):
        own_of = partial(_own_of, cache, settings, without, w)
        found[1, w] = shaped.log_joint(cache, *own_of(nothing))
        for k in range(FOLDS):
            here = fold == k
            left = shaped.log_joint(cache, *own_of(np.where(here, -1.0, labels)))
            found[0, w, here] = left[here]
    return found


def _own_of(cache, settings, without, way, labels):
    """Groups of new rows at every client given what is common without its part, and its labels."""
    kind = "tied" if without["alike"][:, way].any() else settings.covariance_type
    m, _, n_groups, d = without["centers"].shape
    told = shaped.labelled_moments(cache.with_labels(labels), n_groups, kind)
    shapes = (m, 1, n_groups), (m, 1, n_groups, d), (m, 1, n_groups, d, d)
    groups, freedom = shaped.Groups(*map(np.zeros, shapes)), np.zeros((m, n_groups))
    for number in np.unique(without["part"]):
        here = without["part"] == number
        one = borrowed.Common(*(without[name][here][0, way] for name in borrowed.Common._fields))
        one = one if one.shift.any() else one._replace(shift=None)
        moments = (moment[here] for moment in told[:3])
        own = borrowed.by_labels(*moments, one, kind, bool(without["own_weights"].any()))
        covariances, freedom[here] = borrowed.predictive(own, one, kind)
        for array, value in zip(groups, (own.weights, own.means, covariances)):
            array[here, 0] = value
    return groups, freedom


def _rows_foretold(clients, cache, settings, without, reply):
    """Rows with labels, all alike for every entry; and how far they are from their groups."""
    ((name, found),) = reply.items()
    labels, (n_ways, n_groups) = _labels_of(clients), without["centers"].shape[1:3]
    same = (labels[:, None] == np.arange(n_groups)).astype(float)
    far = np.empty((len(labels), 2, n_ways))
    for b, known in enumerate((labels, np.full(len(labels), -1.0))):
        for w in range(n_ways):
            groups, _ = _own_of(cache, settings, without, w, known)
            away = partial(shaped.away, cache, groups, 0)
            far[:, b, w] = of_groups(away, same, cache.sizes)
    # What is blended is as sharp as the sharper of two.
    far = far if found.ndim == 4 else far.max(axis=2)
    told = (labels >= 0).astype(float).reshape(-1, *[1] * (found.ndim - 1))
    return {name: told * np.ones((1, *found.shape[1:])), MISFIT: far}
