"""FGPR at the sites: the client functions, batched over clients."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from fedkin.algorithms.fgpr_settings import FgprSettings
from fedkin.arrays import Arrays, Floats, Indices
from fedkin.federation import Federation
from fedkin.models.adam import Adam
from fedkin.models.gaussian_process import (
    evaluate,
    evaluate_each,
    prior_responsibilities,
)
from fedkin.models.gp_priors import Priors, penalty, weak_priors
from fedkin.models.gp_rows import (
    Packed,
    Prepared,
    coarse,
    half_octaves,
    input_frame,
    mean_basis,
    prepare,
    standardised,
    target_moments,
    thinned,
)
from fedkin.models.kernels import Form, default_spec, form_of
from fedkin.protocol import TracedReply
from fedkin.randomness import Keys
from fedkin.ties import RELATIVE, first_best, first_least

# A site with fewer rows tells location and spread of its rows only coarsely.
LEAST_FOR_MOMENTS = 5
# Places of features are told on a grid of this share of their spread.
BOX_STEP = 0.25
# The theory's constant beside log M in the gradient of the scale.
THEORY_SHARE = 3.0
# Longest local step in log-parameters: a stray mini-batch must not throw a site far away.
LONGEST_LOCAL_STEP = 5.0
# Standard deviation of a site's log-parameters around the shared ones, by `personalise`: "choose"
# only keeps them from where no row speaks against them, "own" (a site alone) knows no others.
PERSONAL_SPREAD = {"map": 1.0, "choose": 2.0, "own": np.inf}
# What holds a site's own log-parameters: the shared ones as `personalise` says and weak priors;
# weak priors alone; nothing but its rows.
PULLED, WEAK, FREE = 0.0, 1.0, 2.0
# Local fits: steps of L-BFGS and size of the projected gradient at which they end.
PERSONAL_STEPS = 200
PERSONAL_TOLERANCE = 1e-6


class Cache(NamedTuple):
    """Packed rows and the kernel's form."""

    data: Prepared
    form: Form
    few: Federation
    """At most `max_points` rows of every client, which a common curve is learnt from."""

    def take(self, who: Indices) -> Cache:
        """Those of some clients."""
        return Cache(self.data.take(who), self.form, self.few.take(who))

    def limited(self, common: Arrays) -> Cache:
        """With the server's bounds: those of the default kernel depend on all sites."""
        form = self.form._replace(lower=common["lower"], upper=common["upper"])
        return self._replace(form=form)


def prepare_sites(clients: Federation, settings: FgprSettings) -> Cache:
    """Standardise and pack; read the kernel."""
    spec = settings.kernel or default_spec(np.ones(clients.n_features))
    form = form_of(spec, clients.n_features)
    # Mini-batches are drawn from packed rows.
    walks = form if settings.optimizer in ("exact", "none") else None
    data = prepare(clients, settings.normalize_y, settings.mean, settings.max_points, walks)
    return Cache(data, form, thinned(clients, settings.max_points))


def describe(clients, cache, settings, common, personal, memory, keys, fields=()):
    """Size, and location and spread of the rows: exact, of few rows coarse, of one row none.

    If asked for, also the centre of the features and a box around them, coarse.
    """
    target, (_, spread) = target_moments(clients), input_frame(clients)
    few, one = (clients.sizes[:, None] < least for least in (LEAST_FOR_MOMENTS, 2))
    moments = np.where(few, np.stack(coarse(*target), axis=1), np.stack(target, axis=1))
    unknown = one | (target[1] <= 0)[:, None]
    reply = {
        "rows": cache.data.rows,
        "features": np.full(len(clients), float(clients.n_features)),
        "moments": np.where(unknown, 0.0, moments),
        "spread": np.where(one, 0.0, np.where(few, half_octaves(spread), spread)),
    }
    if fields:
        reply |= {name: np.where(one, 0.0, told) for name, told in _extent(clients).items()}
    return reply, memory


def _extent(clients: Federation) -> Arrays:
    """Centre of every client's features and a box around them, on a grid of half their spread."""
    centre, spread = input_frame(clients)
    step = BOX_STEP * half_octaves(spread)
    low, high = (np.full_like(centre, fill) for fill in (np.inf, -np.inf))
    np.minimum.at(low, clients.owner, clients.X)
    np.maximum.at(high, clients.owner, clients.X)
    empty = clients.sizes[:, None] == 0
    low, high = np.where(empty, 0.0, low), np.where(empty, 0.0, high)
    return {
        "centre": step * np.round(centre / step),
        "low": step * np.floor(low / step),
        "high": step * np.ceil(high / step),
    }


def likelihood(clients, cache, settings, common, personal, memory, keys):
    """Value and gradient under every prior."""
    value, gradient, _ = evaluate_each(cache.data, cache.form, common["theta"])
    return {"value": value, "gradient": gradient, "rows": cache.data.rows}, memory


# ------------------------------------------------------------------ local steps (the paper's)


def local_steps(clients, cache, settings, common, personal, memory, keys):
    """E steps on mini-batches from the shared hyper-parameters."""
    theta = np.tile(common["theta"], (len(clients), 1))
    batches, adam = _Batches(clients, cache.data, settings), Adam()
    divisor = _divisors(batches.sizes, cache.form, settings.gradient_scaling)
    value = np.zeros(len(clients))
    for number, rate in enumerate(common["rates"], 1):
        batch = evaluate(batches.drawn(keys.fold(number)), cache.form, theta)
        value += batch.value / np.maximum(batches.sizes, 1.0)
        step = batch.gradient / divisor
        if settings.optimizer == "adam-restarted":
            step = adam.direction(step, number)
        step *= rate
        longest = np.linalg.norm(step, axis=1, keepdims=True) / LONGEST_LOCAL_STEP
        theta = np.clip(theta - step / np.maximum(longest, 1.0), common["lower"], common["upper"])
    reply = {"theta": theta, "value": value / len(common["rates"]), "rows": cache.data.rows}
    return TracedReply(reply, partial(_rows_drawn, batches, keys, len(common["rates"]))), memory


def _rows_drawn(batches, keys, n_steps):
    """How often steps draw every row."""
    counts = sum(batches.times_drawn(keys.fold(number)) for number in range(1, n_steps + 1))
    return dict.fromkeys(("theta", "value"), counts)


def _divisors(sizes: Floats, form: Form, scaling: str) -> Floats:
    """What gradients are divided by: M, and for the scale in the theory 3 log M."""
    divisor = np.tile(np.maximum(sizes, 1.0)[:, None], (1, len(form.start)))
    if scaling == "theory":
        theory = THEORY_SHARE * np.maximum(np.log(np.maximum(sizes, 1.0)), 1.0)
        divisor[:, form.is_scale] = theory[:, None]
    return divisor


class _Batches:
    """Mini-batches: small sites whole, of the others `batch_size` rows drawn anew each step."""

    def __init__(self, clients: Federation, data: Prepared, settings: FgprSettings) -> None:
        self.clients, self.data, self.size = clients, data, settings.batch_size
        self.sizes = np.minimum(data.rows, self.size)
        whole = [pack.part(data.rows[pack.owner] <= self.size) for pack in data.packs]
        self.whole = [pack for pack in whole if len(pack.owner)]
        self.large = np.flatnonzero(data.rows > self.size)
        if len(self.large):
            y = standardised(clients, data.location, data.scale)
            self.rows = clients.X, y, mean_basis(clients, y, settings.mean)

    def drawn(self, keys: Keys) -> Prepared:
        """The rows of one step."""
        packs = [*self.whole, self._draw(keys)] if len(self.large) else self.whole
        return self.data._replace(packs=tuple(packs))

    def times_drawn(self, keys: Keys) -> Floats:
        """One for the rows of one step, zero for others, (N,)."""
        drawn = np.ones(len(self.clients.X))
        if len(self.large):
            drawn[np.isin(self.clients.owner, self.large)] = 0.0
            drawn[self._places(keys)] = 1.0
        return drawn

    def _places(self, keys: Keys) -> Indices:
        """Rows of the large clients in one step, (k, batch_size)."""
        sizes = self.clients.sizes[self.large]
        order = keys.take(self.large).uniform(int(sizes.max()))
        order[np.arange(order.shape[1]) >= sizes[:, None]] = 2.0
        chosen = np.sort(np.argpartition(order, self.size - 1, axis=1)[:, : self.size], axis=1)
        return np.asarray(self.clients.offsets[:-1][self.large][:, None] + chosen)

    def _draw(self, keys: Keys) -> Packed:
        rows = self._places(keys)
        X, y, basis = self.rows
        return Packed(
            self.large,
            np.ascontiguousarray(X[rows].transpose(0, 2, 1)),
            y[rows],
            np.full(len(self.large), self.size),
            np.ascontiguousarray(basis[rows].transpose(0, 2, 1)),
        )


# ------------------------------------------------------------------ personal hyper-parameters


def settle(clients, cache, settings, common, personal, memory, keys):
    """The site's place among the priors and, if asked for, hyper-parameters of its own.

    They stay here as memory; what leaves is the log likelihood of what the site now uses and
    whether it keeps hyper-parameters of its own.
    """
    value, _, jitter = evaluate_each(cache.data, cache.form, common["theta"])
    loglik, share = prior_responsibilities(value, np.log(common["weights"]))
    theta = common["theta"][first_best(share, axis=1, floor=RELATIVE)]
    own = np.zeros(len(clients))
    cache = cache.limited(common)
    for k in range(len(clients) if settings.personalise != "posterior" else 0):
        mine = _personal(cache, k, theta[k], float(loglik[k]), settings)
        if mine is not None:
            theta[k], loglik[k] = mine
            own[k] = 1.0
    memory = {
        "theta": theta,
        "own": own,
        "freedom": np.full(len(clients), PULLED),
        "responsibilities": share,
        "jitter": jitter,
    }
    return {"loglik": loglik, "own": own, "rows": cache.data.rows}, memory


def _personal(
    cache: Cache, k: int, shared: Floats, loglik: float, settings: FgprSettings
) -> tuple[Floats, float] | None:
    """Own hyper-parameters and their log likelihood, or None to keep the shared ones."""
    rows, how = float(cache.data.rows[k]), settings.personalise
    needed = needed_gain(len(shared), rows) if how == "choose" else -np.inf
    if rows < (2 if how == "own" else 1) or not len(shared) or needed == np.inf:
        return None
    data = cache.data.take(np.array([k]))
    priors = own_priors(cache, k, settings)
    theta = fit_personal(data, cache.form, shared, how, priors)
    reached = -float(evaluate(data, cache.form, theta).value[0])
    return (theta, reached) if reached - loglik > needed else None


def own_priors(cache: Cache, k: int, settings: FgprSettings) -> Priors | None:
    """Weakly informative priors in units of the client's own rows, if there shall be any."""
    if not settings.weak_priors:
        return None
    site = cache.few.take(np.array([k]))
    return priors_of(site, cache.form, float(cache.data.scale[k]))


def priors_of(site: Federation, form: Form, scale: float) -> Priors:
    """For parameters of one client whose target is divided by `scale`."""
    _, spread = target_moments(site)
    _, features = input_frame(site)
    return weak_priors(form.names, float(spread[0]) / scale or 1.0, features[0])


def needed_gain(n_parameters: int, rows: float) -> float:
    """Log likelihood that own hyper-parameters must gain: BIC, with AICc's term for few rows.

    BIC alone lets sites of less than ten rows fit their noise.
    """
    spare = rows - n_parameters - 1.0
    if spare <= 0:
        return np.inf
    few = n_parameters * (n_parameters + 1.0) / spare
    return 0.5 * n_parameters * float(np.log(rows)) + few


def fit_personal(
    data: Prepared, form: Form, shared: Floats, how: str, priors: Priors | None = None
) -> Floats:
    """The best of a client's fits from the shared and another start, pulled to the shared."""
    starts = [shared] if how == "map" else [shared, _other_start(form, shared)]
    spread = PERSONAL_SPREAD[how]
    fits = [_fit_alone(data, form, start, shared, spread, priors) for start in starts]
    return fits[first_least([value for _, value in fits], floor=RELATIVE)][0]


def _other_start(form: Form, shared: Floats) -> Floats:
    """A second start with half the length scales and little noise, against bad optima."""
    other, names = shared.copy(), np.array(form.names)
    other[names == "length_scale"] -= np.log(2.0)
    other[names == "noise_level"] = np.minimum(other[names == "noise_level"], np.log(0.01))
    return other


def _fit_alone(
    data: Prepared,
    form: Form,
    start: Floats,
    centre: Floats,
    spread: float,
    priors: Priors | None,
) -> tuple[Floats, float]:
    """Hyper-parameters of one client by L-BFGS, with a normal prior unless `spread` is infinite."""
    n = float(data.rows[0])

    def objective(theta: Floats) -> tuple[float, Floats]:
        site = evaluate(data, form, theta)
        away = (theta - centre) / spread
        value = site.value[0] + 0.5 * float(away @ away)
        gradient = site.gradient[0] + away / spread
        if priors is not None:
            more, slope = penalty(priors, theta)
            value, gradient = value + float(more), gradient + slope
        return value / n, gradient / n

    end = minimize(
        objective,
        np.clip(start, form.lower, form.upper),
        jac=True,
        method="L-BFGS-B",
        bounds=np.stack([form.lower, form.upper], axis=1),
        options={"maxiter": PERSONAL_STEPS, "gtol": PERSONAL_TOLERANCE, "ftol": 1e-12},
    )
    return end.x, float(end.fun) * n
