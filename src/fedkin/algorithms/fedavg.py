"""FedAvg of one curve for all sites: the rivals of FGPR (McMahan et al. 2017).

Every round all sites (or some) start from the shared parameters, take gradient steps on their own
mean squared error, and the server averages with the sites' rows. The curve is a polynomial of
each feature, or a small network.

Where we differ: inputs are brought to one frame that sites agree on first (rounded to a coarse
grid, so that it says little of any site); polynomials are used in a basis that is orthonormal
over all sites' rows and with steps no site's error is too steep for, without which gradient steps
of degree 10 and more get nowhere; for the network the server takes Adam steps along the averaged
change (Reddi et al. 2021), because plain averaging needs thousands of rounds.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedkin.algorithms.fgpr_settings import NORMALIZE_Y
from fedkin.arrays import Array, Arrays, Floats
from fedkin.federation import Federation
from fedkin.models.adam import Adam
from fedkin.models.averaged_functions import Network, Polynomial, legendre, whitening_of
from fedkin.models.gp_rows import Packed, Prepared, coarse, half_octaves, input_frame, prepare
from fedkin.models.least_squares import MOST_ROWS
from fedkin.protocol import Algorithm, Ask, Field, Program, Replies, Result, Roster, Step
from fedkin.protocol.runs import About
from fedkin.settings import FRACTION, Number, Settings, Whole, one_of, setting
from fedkin.tables import Table

Server = Generator[Ask, Replies, Any]

# Sites are never cut into pieces here.
NO_LIMIT = 1 << 60
# How the network's averages of squared changes fade: rounds are few, so faster than usual.
FADE_SQUARE = 0.99


class FedAvgSettings(Settings):
    """What can be set; `fedkin.FedAvgPolynomial` and `FedAvgNetwork` say what each does."""

    model: str = setting("polynomial", one_of("polynomial", "network"), at_site=True)
    degree: Any = setting(10, Whole(), at_site=True)
    depth: Any = setting(2, Whole(), at_site=True)
    width: int = setting(16, Whole(), at_site=True)
    normalize_y: Any = setting(True, NORMALIZE_Y, at_site=True)
    local_steps: int = setting(5, Whole(), at_site=True)
    learning_rate: float = setting(0.5, Number(above=0.0))
    server_rate: float = setting(0.02, Number(above=0.0))
    max_rounds: int = setting(200, Whole())
    tol: float = setting(1e-6, Number(above=0.0))
    fraction: float = setting(1.0, FRACTION)

    @property
    def size_name(self) -> str:
        """The setting that says how complicated the curve is."""
        return "degree" if self.model == "polynomial" else "depth"

    @property
    def size(self) -> int | None:
        """How complicated the curve is; None if that is to be chosen."""
        return self.degree if self.model == "polynomial" else self.depth


class PolynomialSettings(FedAvgSettings):
    """A polynomial, whose degree may be left open."""

    degree: Any = setting(10, Whole(or_none=True), at_site=True)


class NetworkSettings(FedAvgSettings):
    """A network, whose depth may be left open."""

    depth: Any = setting(2, Whole(or_none=True), at_site=True)
    learning_rate: float = setting(0.05, Number(above=0.0))


@dataclass(frozen=True, kw_only=True, eq=False)
class FedAvgResult(Result):
    """Parameters (p,) of one curve, centre and reach of the inputs (2, d), noise (a deviation).

    `size` is its degree or depth; `choice` holds the sizes tried and their errors, (k, 2).
    """

    for_all = ("theta", "frame", "noise", "size")
    for_one = ()

    theta: Floats
    frame: Floats
    noise: Array
    size: Array
    converged: Array
    history_error: Floats
    choice: Floats | None = None

    def choice_table(self, settings: FedAvgSettings) -> Table:
        """Errors of the sizes that were tried; empty if the size was given."""
        sizes = errors = np.zeros(0)
        if self.choice is not None:
            sizes, errors = self.choice[:, 0].astype(int), self.choice[:, 1]
        title = f"{settings.size_name} chosen on training sites held out"
        return Table({settings.size_name: sizes, "rmse": errors}, title)

    def title(self, about: About) -> str:
        """The fit in half a line."""
        return f"{len(about.sites)} sites, {about.settings.size_name} {self.size}"

    def tables(self, about: About) -> dict[str, Table]:
        """The choice of the size."""
        return {"choice": self.choice_table(about.settings)}

    def account(self, about: About) -> list[str]:
        """What left the sites."""
        return ["In every round each site sent the parameters its own steps led to."]


# ------------------------------------------------------------------ what leaves a client

ROWS = Field((), "number of rows", bound=MOST_ROWS, least=0.0, reveals="count")
CENTRE = Field(
    ("d",), "mean of every feature, rounded to halves of its standard deviation", reveals="sums"
)
SPREAD = Field(
    ("d",),
    "standard deviation of every feature, rounded to a half octave",
    least=0.0,
    reveals="sums",
)
REACH = Field(("d",), "largest distance from the centre, rounded up to a half octave")
GRAM = Field(("t", "t"), "sums of products of the polynomial basis", reveals="products")
THETA = Field(("p",), "parameters of the curve", reveals="model")
ERROR = Field((), "mean squared error of the site's standardised target", least=0.0)

FRAME = Field((2, "d"), "centre and reach of the inputs")
BASIS = Field(("t", "u"), "the polynomial basis; empty for a network")
RATE = Field((), "step size")


# ------------------------------------------------------------------ client functions


def prepare_sites(clients: Federation, settings: FedAvgSettings) -> Prepared:
    """Standardise and pack, uncut."""
    return prepare(clients, settings.normalize_y, "zero", NO_LIMIT)


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
    size = len(legendre(np.zeros(clients.n_features), settings.degree))
    gram = np.zeros((len(clients), size, size))
    for pack in cache.packs:
        columns = legendre(_inputs(pack.X, common["frame"]), settings.degree)
        columns *= _weights(pack)[..., None] > 0
        gram[pack.owner] = columns.transpose(0, 2, 1) @ columns
    return {"gram": gram, "rows": cache.rows}, memory


def _local_steps(clients, cache, settings, common, personal, memory, keys):
    curve = _curve(settings, common)
    theta = np.tile(common["theta"], (len(clients), 1))
    error = np.zeros(len(clients))
    for pack in cache.packs:
        inputs = curve.inputs(_inputs(pack.X, common["frame"]))
        weights = _weights(pack)
        mine = theta[pack.owner]
        error[pack.owner] = (weights * (curve.values(inputs, mine) - pack.y) ** 2).sum(axis=1)
        for _ in range(settings.local_steps):
            mine = mine - common["rate"] * curve.gradient(inputs, pack.y, weights, mine)
        theta[pack.owner] = mine
    return {"theta": theta, "error": error, "rows": cache.rows}, memory


def _inputs(X: Floats, frame: Floats) -> Floats:
    """Packed rows (k, d, w) in the common frame, (k, w, d)."""
    return (X.transpose(0, 2, 1) - frame[0]) / frame[1]


def _weights(pack: Packed) -> Floats:
    """1/n on a client's rows and 0 on padding, (k, w)."""
    inside = np.arange(pack.y.shape[1]) < pack.sizes[:, None]
    weights: Floats = inside / pack.sizes[:, None]
    return weights


def _curve(settings: FedAvgSettings, common: Arrays) -> Polynomial | Network:
    if settings.model == "polynomial":
        return Polynomial(settings.degree, common["basis"])
    return Network(common["frame"].shape[1], settings.depth, settings.width)


# ------------------------------------------------------------------ server program


def program(roster: Roster, settings: FedAvgSettings) -> Program:
    """Agree on a frame, then average."""
    frame = yield from _frame()
    rate, basis = settings.learning_rate, np.zeros((0, 0))
    if settings.model == "polynomial":
        replies = yield Ask("gram", {"frame": frame}, note="basis")
        basis, steepest = _basis(replies)
        theta, rate = np.zeros(len(basis)), rate / steepest
    else:
        network = Network(frame.shape[1], settings.depth, settings.width)
        theta = network.start(np.random.default_rng([roster.seed, 0xFEDA]))
    common = {"frame": frame, "basis": basis, "rate": np.array(rate)}
    theta, errors, converged = yield from _rounds(theta, common, settings)
    return FedAvgResult(
        theta=basis @ theta if len(basis) else theta,
        frame=frame,
        noise=np.sqrt(errors[-1] if errors else 1.0),
        size=np.array(settings.size),
        converged=np.array(converged),
        history_error=np.array(errors),
    )


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


def _rounds(theta: Floats, common: Arrays, settings: FedAvgSettings) -> Server:
    """Average until nothing moves; for the network with Adam along the averaged change."""
    adam, errors, converged = Adam(fade_square=FADE_SQUARE), [], False
    for number in range(1, settings.max_rounds + 1):
        ask = {"theta": theta, **common}
        replies = yield Ask("local_steps", ask, fraction=settings.fraction, note="averaging")
        total = float(replies["rows"].sum())
        if total <= 0:
            continue
        change = replies["rows"] @ replies["theta"] / total - theta
        errors.append(float(replies["rows"] @ replies["error"]) / total)
        if settings.model == "network":
            change = settings.server_rate * adam.direction(change, number)
        theta = theta + change
        converged = float(np.abs(change).max()) <= settings.tol
        if converged:
            break
    return theta, errors, converged


FEDAVG = Algorithm(
    name="fedavg",
    settings=FedAvgSettings,
    prepare=prepare_sites,
    program=program,
    result=FedAvgResult,
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
