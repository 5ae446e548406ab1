"""FedAvg of one curve for all sites: the rivals of FGPR (McMahan et al. 2017).

Every round all sites (or some) start from the shared parameters, take gradient steps on their own
mean squared error, and the server averages with the sites' rows. The curve is a polynomial of
each feature, or a small network.

Where we differ: inputs are brought to one frame that sites agree on first (rounded to a coarse
grid, so that it says little of any site); polynomials are used in a basis that is orthonormal
over all sites' rows and with steps no site's error is too steep for, without which gradient
steps of degree 10 and more get nowhere; for the
network the server takes Adam steps along the averaged change (Reddi et al. 2021), because plain
averaging needs thousands of rounds.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkin.federation import Federation
from fedkin.models.averaged_functions import Network, Polynomial, legendre, whitening_of
from fedkin.models.gp_rows import Prepared, coarse, half_octaves, input_frame, prepare
from fedkin.models.least_squares import MOST_ROWS
from fedkin.protocol import (
    Algorithm,
    Array,
    Arrays,
    Ask,
    Field,
    Program,
    Replies,
    Roster,
    Settings,
    Step,
)

Floats = NDArray[np.float64]
Server = Generator[Ask, Replies, Any]

DEFAULTS: dict[str, Any] = {
    "model": "polynomial",
    "degree": 10,
    "depth": 2,
    "width": 32,
    "normalize_y": True,
    "local_steps": 5,
    "learning_rate": 0.5,
    "server_rate": 0.02,
    "max_rounds": 200,
    "tol": 1e-6,
    "fraction": 1.0,
}
# Sites are never cut into pieces here.
NO_LIMIT = 1 << 60
ADAM = (0.9, 0.99, 1e-8)

# ------------------------------------------------------------------ what leaves a client

ROWS = Field((), "number of rows", bound=MOST_ROWS)
CENTRE = Field(("d",), "mean of every feature, rounded to halves of its standard deviation")
SPREAD = Field(("d",), "standard deviation of every feature, rounded to a half octave")
REACH = Field(("d",), "largest distance from the centre, rounded up to a half octave")
GRAM = Field(("t", "t"), "sums of products of the polynomial basis")
THETA = Field(("p",), "parameters of the curve")
ERROR = Field((), "mean squared error of the site's standardised outcome")

FRAME = Field((2, "d"), "centre and reach of the inputs")
BASIS = Field(("t", "u"), "the polynomial basis; empty for a network")
RATE = Field((), "step size")


# ------------------------------------------------------------------ client functions


class Cache(NamedTuple):
    """Packed rows, uncut."""

    data: Prepared

    def take(self, who: Array) -> Cache:
        """Those of some clients."""
        return Cache(self.data.take(who))


def prepare_sites(clients: Federation, settings: Settings) -> Cache:
    """Standardise and pack."""
    return Cache(prepare(clients, settings["normalize_y"], "zero", NO_LIMIT))


def _describe(clients, cache, settings, common, personal, memory, keys):
    centre, spread = coarse(*input_frame(clients))
    rows = clients.sizes.astype(np.float64)
    return {"rows": rows, "centre": centre, "spread": spread}, memory


def _reach(clients, cache, settings, common, personal, memory, keys):
    full = clients.sizes > 0
    distance = np.abs(clients.X - common["centre"])
    largest = np.zeros((len(clients), clients.n_features))
    largest[full] = np.maximum.reduceat(distance, clients.offsets[:-1][full], axis=0)
    return {"reach": half_octaves(largest, np.ceil)}, memory


def _gram(clients, cache, settings, common, personal, memory, keys):
    size = len(legendre(np.zeros(clients.n_features), settings["degree"]))
    gram = np.zeros((len(clients), size, size))
    for pack in cache.data.packs:
        columns = legendre(_inputs(pack.X, common["frame"]), settings["degree"])
        columns *= _weights(pack)[..., None] > 0
        gram[pack.owner] = columns.transpose(0, 2, 1) @ columns
    return {"gram": gram, "rows": cache.data.rows}, memory


def _local_steps(clients, cache, settings, common, personal, memory, keys):
    curve = _curve(settings, common)
    theta = np.tile(common["theta"], (len(clients), 1))
    error = np.zeros(len(clients))
    for pack in cache.data.packs:
        inputs = curve.inputs(_inputs(pack.X, common["frame"]))
        weights = _weights(pack)
        mine = theta[pack.owner]
        error[pack.owner] = (weights * (curve.values(inputs, mine) - pack.y) ** 2).sum(axis=1)
        for _ in range(settings["local_steps"]):
            mine = mine - common["rate"] * curve.gradient(inputs, pack.y, weights, mine)
        theta[pack.owner] = mine
    return {"theta": theta, "error": error, "rows": cache.data.rows}, memory


def _inputs(X: Floats, frame: Floats) -> Floats:
    """Packed rows (k, d, w) in the common frame, (k, w, d)."""
    return (X.transpose(0, 2, 1) - frame[0]) / frame[1]


def _weights(pack: Any) -> Floats:
    inside = np.arange(pack.y.shape[1]) < pack.sizes[:, None]
    weights: Floats = inside / pack.sizes[:, None]
    return weights


def _curve(settings: Settings, common: Arrays) -> Polynomial | Network:
    if settings["model"] == "polynomial":
        return Polynomial(settings["degree"], common["basis"])
    return Network(common["frame"].shape[1], settings["depth"], settings["width"])


# ------------------------------------------------------------------ server program


def program(roster: Roster, settings: Settings) -> Program:
    """Agree on a frame, then average."""
    frame = yield from _frame()
    rate, basis = settings["learning_rate"], np.zeros((0, 0))
    if settings["model"] == "polynomial":
        replies = yield Ask("gram", {"frame": frame}, note="basis")
        basis, steepest = _basis(replies)
        theta, rate = np.zeros(len(basis)), rate / steepest
    else:
        network = Network(frame.shape[1], settings["depth"], settings["width"])
        theta = network.start(np.random.default_rng([roster.seed, 0xFEDA]))
    common = {"frame": frame, "basis": basis, "rate": np.array(rate)}
    theta, errors, converged = yield from _rounds(theta, common, settings)
    return {
        "theta": basis @ theta if len(basis) else theta,
        "frame": frame,
        "noise": np.sqrt(np.array(errors[-1] if errors else 1.0)),
        "converged": np.array(converged),
        "history_error": np.array(errors),
    }


def _frame() -> Server:
    """Centre and reach (2, d) of all sites' inputs."""
    replies = yield Ask("describe", note="frame")
    heard = replies["rows"] > 0
    centre = np.median(replies["centre"][heard], axis=0)
    spread = np.median(replies["spread"][heard], axis=0)
    centre = spread * np.round(centre / spread)
    replies = yield Ask("reach", {"centre": centre}, note="frame")
    return np.stack([centre, replies["reach"].max(axis=0)])


def _basis(replies: Replies) -> tuple[Floats, float]:
    """A basis orthonormal over all rows, and the largest curvature of a site's error in it."""
    rows = np.maximum(replies["rows"], 1.0)
    basis = whitening_of(replies.total("gram") / rows.sum())
    own = basis.T @ (replies["gram"] / rows[:, None, None]) @ basis
    return basis, max(float(np.linalg.eigvalsh(own)[:, -1].max()), 1e-12)


def _rounds(theta: Floats, common: Arrays, settings: Settings) -> Server:
    """Average until nothing moves; for the network with Adam along the averaged change."""
    first, second, errors, converged = np.zeros_like(theta), np.zeros_like(theta), [], False
    for number in range(1, settings["max_rounds"] + 1):
        ask = {"theta": theta, **common}
        replies = yield Ask("local_steps", ask, fraction=settings["fraction"], note="averaging")
        total = float(replies["rows"].sum())
        if total <= 0:
            continue
        change = replies["rows"] @ replies["theta"] / total - theta
        errors.append(float(replies["rows"] @ replies["error"]) / total)
        if settings["model"] == "network":
            first += (1 - ADAM[0]) * (change - first)
            second += (1 - ADAM[1]) * (change**2 - second)
            size = np.sqrt(second / (1 - ADAM[1] ** number)) + ADAM[2]
            change = settings["server_rate"] * first / (1 - ADAM[0] ** number) / size
        theta = theta + change
        converged = float(np.abs(change).max()) <= settings["tol"]
        if converged:
            break
    return theta, errors, converged


FEDAVG = Algorithm(
    name="fedavg",
    prepare=prepare_sites,
    program=program,
    defaults=DEFAULTS,
    client_settings=(
        "model",
        "degree",
        "depth",
        "width",
        "normalize_y",
        "local_steps",
    ),
    steps={
        "describe": Step(_describe, {"rows": ROWS, "centre": CENTRE, "spread": SPREAD}),
        "reach": Step(_reach, {"reach": REACH}, {"centre": CENTRE}),
        "gram": Step(_gram, {"gram": GRAM, "rows": ROWS}, {"frame": FRAME}),
        "local_steps": Step(
            _local_steps,
            {"theta": THETA, "error": ERROR, "rows": ROWS},
            {"theta": THETA, "frame": FRAME, "basis": BASIS, "rate": RATE},
        ),
    },
)
