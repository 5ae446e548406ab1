"""Lasso over all sites by consensus ADMM (Boyd et al. 2011, chapter 8).

minimise  sum_j |y_j - X_j b|^2 / 2 + alpha |b|_1

| Boyd et al. | here |
|---|---|
| x_i, u_i | `local`, `dual`: the client's memory, never sent by themselves |
| z | `coef` |
| rho | `rho`, one per client and sent to it personally: proportional to its rows |

The smallest algorithm here with client memory and personal messages.

Where we differ: the penalty is personal, so that a large site does not need more rounds than a
small one; and a client that missed a round keeps its memory while the server keeps its last
contribution, so that the fixed point is the same whoever is late.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedkin.arrays import Array, Floats
from fedkin.protocol import (
    Algorithm,
    Ask,
    Field,
    LastReplies,
    Program,
    Result,
    Roster,
    Step,
    over_roster,
)
from fedkin.settings import FRACTION, Number, Settings, Whole, setting


class ConsensusSettings(Settings):
    """What can be set: the penalty, when to stop, and the share of the sites asked a round."""

    alpha: float = setting(1.0, Number(least=0.0))
    max_rounds: int = setting(500, Whole())
    tol: float = setting(1e-8, Number())
    fraction: float = setting(1.0, FRACTION)


@dataclass(frozen=True, kw_only=True, eq=False)
class ConsensusResult(Result):
    """Coefficients (d,), and by how much they moved in each round."""

    for_all = ("coef",)
    for_one = ()

    coef: Floats
    history_change: Floats
    converged: Array


# ------------------------------------------------------------------ what leaves a client

ROWS = Field((), "number of rows", least=0.0, reveals="count")
FEATURES = Field((), "number of features", least=0.0, reveals="nothing")
CONTRIBUTION = Field(
    ("d",), "the site's coefficients plus its running disagreement", reveals="model"
)
MOVED = Field((), "how far the site's coefficients moved", least=0.0)


# ------------------------------------------------------------------ client functions


def prepare(clients, settings):
    """X'X (m, d, d) and X'y (m, d) of every client."""
    if clients.y is None:
        raise ValueError("the consensus lasso needs a target y at every site")
    gram = np.zeros((len(clients), clients.n_features, clients.n_features))
    cross = np.zeros((len(clients), clients.n_features))
    for bucket in clients.buckets():
        X, y = bucket.pack(clients.X), bucket.pack(clients.y)
        gram[bucket.clients] = X @ X.transpose(0, 2, 1)
        cross[bucket.clients] = np.einsum("kdn,kn->kd", X, y)
    return {"gram": gram, "cross": cross}


def _describe(clients, cache, settings, common, personal, memory, keys):
    rows = clients.sizes.astype(np.float64)
    return {"rows": rows, "features": np.full_like(rows, clients.n_features)}, memory


def _agree(clients, cache, settings, common, personal, memory, keys):
    """One ADMM step of the client: settle the disagreement with `coef`, then fit again."""
    coef, rho = common["coef"], personal["rho"][:, None]
    local = memory["local"] if memory else np.zeros_like(cache["cross"])
    dual = memory["dual"] + local - coef if memory else np.zeros_like(local)
    system = cache["gram"] + rho[..., None] * np.eye(len(coef))
    target = cache["cross"] + rho * (coef - dual)
    new = np.linalg.solve(system, target[..., None])[..., 0]
    reply = {"contribution": new + dual, "moved": np.linalg.norm(new - local, axis=1)}
    return reply, {"local": new, "dual": dual}


# ------------------------------------------------------------------ server program


def program(roster: Roster, settings: ConsensusSettings) -> Program:
    """Ask, average with the personal weights, threshold; until nobody moves."""
    replies = yield Ask("describe", note="sizes")
    rows = over_roster(replies["rows"], replies.clients, len(roster), missing=0.0)
    rho = np.where(rows > 0, rows, 1.0)
    coef = np.zeros(int(np.median(replies["features"])))
    last = LastReplies(len(roster))
    history, converged = [], False
    for _ in range(settings.max_rounds):
        replies = yield Ask("agree", {"coef": coef}, {"rho": rho}, fraction=settings.fraction)
        last.hear(replies, "contribution")
        weight = np.where(last.heard, rho, 0.0)
        mean = weight @ last["contribution"] / weight.sum()
        new = soft_threshold(mean, settings.alpha / weight.sum())
        change = max(np.linalg.norm(new - coef), replies["moved"].max())
        history.append(change)
        coef = new
        converged = change <= settings.tol * (1 + np.linalg.norm(coef))
        if converged:
            break
    return ConsensusResult(
        coef=coef, history_change=np.array(history), converged=np.array(converged)
    )


def soft_threshold(values, threshold):
    """The proximal map of the absolute value."""
    return np.sign(values) * np.maximum(np.abs(values) - threshold, 0.0)


CONSENSUS_LASSO = Algorithm(
    name="consensus_lasso",
    settings=ConsensusSettings,
    prepare=prepare,
    program=program,
    result=ConsensusResult,
    steps={
        "describe": Step(_describe, {"rows": ROWS, "features": FEATURES}),
        "agree": Step(
            _agree,
            {"contribution": CONTRIBUTION, "moved": MOVED},
            {"coef": Field(("d",), "the coefficients all are to agree on")},
            {"rho": Field((), "how strongly this site is held to them")},
        ),
    },
)
