"""FedGrEM: robust federated gradient EM (Tian, Weng, Feng, ICML 2024), Algorithm 1 and beyond.

| paper | here |
|---|---|
| K tasks, n, R | clients, rows of a client, components |
| w_r^(k), theta_r^(k) | `weights` (stay at the site), `components` |
| theta-bar_r | `centers` |
| local update, eta_r^(k) = C_eta / w_r^(k)[0] | `improve`; `step_constant` over the first weight |
| central update (6) | `FedGrem.combine`: `shrink_to_center`, solved exactly |
| lambda^[t], kappa_0, C | `penalty`, `penalty_decay`, `penalty_constant` (B.1) |

Where we differ from the paper
- `shrinkage="adaptive"` (default): how far a site is pulled to the centre follows from its own
  sampling variance and the spread between sites, estimated per component; odd sites neither pull
  nor are pulled; full M-steps; nothing to tune. The price: sampling variances leave the site.
- The central update is solved to its minimum; the paper's two sweeps (`solver="alternating"`) stop
  short of it, which costs up to a third in error at h = 0.
- A stopping rule instead of T = 1000. A gradient step that would diverge is halved, and counted.
- `second_start`: after the local fits every site fits once more from the centres of all and keeps
  the likelier fit. A site whose own start went astray is repaired; no further field leaves.
- Where groups that sites found alone could be matched otherwise at more than a third of them, and a
  typical site has fewer than five rows a group, sites depart from one mixture of all (`shaped`), if
  that foretells rows that are left out better. `second_start=False` keeps to the sites' own fits.
- Mixtures of regressions start from all sites together (`init="federated"`).
- The noise of the regressions, if not given, is one for all sites: the median site's. Each site's
  own shrinks with its own overfit, which then looks like certainty.
- A site that is not asked or not heard keeps its place: the server uses its last estimate.
- No site counts for more than 20 times the median site's rows: nobody can check what it claims.
- Declined for now: the decentralised variant sketched in appendix D.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np

from fedkin.algorithms.consensus import soft_threshold
from fedkin.algorithms.mixtures import shaped, sites
from fedkin.algorithms.mixtures.coordinator import TINY, Coordinator, largest_change
from fedkin.algorithms.mixtures.families import family_of, prepare
from fedkin.algorithms.mixtures.federated_start import FEDERATED_START
from fedkin.algorithms.mixtures.result import FedGremResult, JoinedResult
from fedkin.algorithms.mixtures.settings import (
    NOT_NEGATIVE,
    POSITIVE,
    POSITIVE_OR_NONE,
    JoinedSettings,
)
from fedkin.algorithms.mixtures.shared_start import LEAST_SITES, MOST_TRUSTED
from fedkin.arrays import Arrays, Bools, Floats
from fedkin.models.component_errors import ComponentErrors, Told, component_errors
from fedkin.models.gaussian_mixture import COVARIANCE_TYPES
from fedkin.models.latent_classes import mixture_weights
from fedkin.protocol import Algorithm, Program, Replies, Roster, Step, TracedReply, over_roster
from fedkin.settings import Flag, Number, Whole, one_of, setting
from fedkin.shrinkage import AdaptivelyShrunk, shrink_adaptively, shrink_to_center
from fedkin.shrinkage.borrowed import OWN_KINDS

# A gradient step of this many times the longest that cannot overshoot is taken to diverge; one that
# must be halved ends below HALVED times it. Twice diverges, and close to it the way is a zigzag.
DIVERGES = 1.9
HALVED = 1.5
# Rounds in which a common covariance, noise or the centres may still be settling.
FIRST_ROUNDS = 1
# Half of the values of a standard normal variable are closer to zero than this.
NORMAL_QUARTILE = 0.6745
# The least spread of distances from the centre, as a share of the typical distance.
LEAST_SPREAD_SHARE = 1e-9
# A curvature of more coefficients than this is not sent: 160 kB a site.
MOST_COEFFICIENTS = 200
# The least variance and the least value of a weight that is shared.
LEAST_WEIGHT_NOISE = 1e-9
LEAST_WEIGHT = 1e-6
# With as many rows a group own fits stand by themselves, and sites with foreign rows stay apart
# from the others in them, which in one mixture of all they do not.
ROWS_OF_A_GROUP = 5


class FedGremSettings(JoinedSettings):
    """What can be set; `fedkin.FedGrEM` says what each does."""

    n_components: int | None = setting(2, Whole(or_none=True), at_site=True)  # type: ignore[assignment]
    covariance_type: str = setting("identity", one_of(*COVARIANCE_TYPES, "full"), at_site=True)
    shrinkage: str = setting("adaptive", one_of("adaptive", "paper"), at_site=True)
    second_start: Any = setting("auto", one_of("auto", True, False))
    step: str = setting("auto", one_of("auto", "em", "gradient"), at_site=True)
    step_constant: float = setting(0.95, POSITIVE, at_site=True)
    local_steps: int = setting(1, Whole(), at_site=True)
    batch_size: int | None = setting(None, Whole(or_none=True), at_site=True)
    share_weights: Any = setting("auto", one_of("auto", True, False))
    clip: float | None = setting(None, POSITIVE_OR_NONE, at_site=True)
    threshold: float | None = setting(None, Number(least=0.0, or_none=True), at_site=True)
    sigma: float | None = setting(None, POSITIVE_OR_NONE, at_site=True)
    fit_intercept: bool = setting(False, Flag(), at_site=True)
    solver: str = setting("exact", one_of("exact", "alternating"))
    penalty_start: float = setting(1.0, NOT_NEGATIVE)
    penalty_decay: float = setting(0.1, NOT_NEGATIVE)
    penalty_constant: float = setting(2.0, NOT_NEGATIVE)
    labels: bool = setting(False, Flag(), at_site=True)
    standard_errors: bool = setting(False, Flag())

    # What "auto" means with either kind of shrinkage.
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"shrinkage": "paper", "step": "gradient", "second_start": False},
        "adaptive": {"shrinkage": "adaptive", "step": "em", "second_start": True},
    }

    @property
    def site_step(self) -> str:
        """What a site does with the components it is sent: "em" or "gradient"."""
        return self.presets[self.shrinkage]["step"] if self.step == "auto" else self.step

    @property
    def shaped(self) -> bool:
        """Whether groups have covariances of their own (`shaped`), or labels."""
        chosen = self.n_components is None
        return self.plain and (self.labels or chosen or self.covariance_type in OWN_KINDS)

    @property
    def plain(self) -> bool:
        """Gaussian mixtures by full M-steps on all rows."""
        plain = self.shrinkage == "adaptive" and self.site_step == "em" and self.local_steps == 1
        other = self.clip or self.threshold or self.batch_size
        return self.family == "gaussian" and plain and not other

    @property
    def shares_weights(self) -> bool:
        """Whether weights are pulled together, too."""
        return self.shaped if self.share_weights == "auto" else bool(self.share_weights)

    def check_together(self) -> None:
        """Complain about what groups with covariances of their own do not know."""
        super().check_together()
        wanted = {
            "labels": self.labels,
            "n_components=None": self.n_components is None,
            "covariance_type='full'": self.covariance_type == "full" and self.family == "gaussian",
        }
        for what in (what for what, is_so in wanted.items() if is_so and not self.plain):
            raise ValueError(
                f"{what} is for family='gaussian' with shrinkage='adaptive', step='em' and none of "
                "clip, threshold, batch_size, local_steps"
            )

        if self.standard_errors and (self.shaped or not self.by_likelihood):
            raise ValueError(
                "standard_errors is for shrinkage='adaptive' with step='em' and none of clip, "
                "threshold; Gaussian groups need covariance_type 'identity' or 'tied': other fits "
                "end where the components are not the most likely ones given the others'"
            )

    @property
    def by_likelihood(self) -> bool:
        """Whether a fit ends at the most likely components, given the centre and the spread."""
        plain = self.shrinkage == "adaptive" and self.site_step == "em" and not self.clip
        return plain and not self.threshold and not self.batch_size

    @property
    def second_fit(self) -> bool:
        """Whether sites fit alone once more when the centres of all are known."""
        usual = self.presets[self.shrinkage]["second_start"]
        return bool(usual if self.second_start == "auto" else self.second_start)


# ------------------------------------------------------------------ local update


def improve(clients, cache, settings, common, personal, memory, keys, fields):
    """Weights, components and scale of a site, from the components the server sent."""
    family = family_of(settings)
    memory, scale = sites.remembered(family, cache, common, personal, memory)
    components, weights = personal["components"], memory["weights"]
    for number in range(settings.local_steps):
        batch = sites.Batch(cache, settings, keys.fold(number + 1), memory)
        expected = weights, components, scale
        statistics = family.expect(batch.rows, expected)
        if settings.site_step == "em":
            new, n_halvings = family.model.maximise(statistics.packed, components), 0.0
        else:
            lengths, n_halvings = step_lengths(family, statistics, memory["first_weights"])
            new = family.gradient_step(statistics, components, lengths)
        new = thresholded(new, settings)
        components = batch.averaged("components", new)
        weights = batch.averaged("weights", mixture_weights(statistics.counts, weights))
        new_scale = family.scale(batch.rows, statistics, new, scale)
        if new_scale is not scale:
            scale = batch.averaged("scale", new_scale)
        memory = {**batch.memory, "halvings": batch.memory["halvings"] + n_halvings}
    memory["weights"] = weights
    if "scale" in memory:
        memory["scale"] = scale
    reply = {"components": components, "rows": cache.sizes.astype(float)}
    reply["halvings"] = memory["halvings"]
    # Residuals about what was sent: about the site's own new fit they would flatter it.
    about = personal["components"] if "residual" in fields else components
    fit, rows = (weights, components, scale), batch.rows
    reply = sites.with_optional(reply, fields, family, rows, statistics, fit, about)
    return TracedReply(reply, partial(rows_behind, family, cache, expected, batch)), memory


def rows_behind(family, rows, expected, batch):
    """How much every row counts in every group of a step on a batch, by field."""
    drawn = batch.drawn and batch.drawn()
    return sites.rows_of_groups(family, rows, expected, drawn, asked=True)


def step_lengths(family, statistics, first_weights):
    """C_eta / first weight (m, R), halved until it is safe; and how often that was, (m,).

    No weight counts as less than that of one row.
    """
    least = 1.0 / np.maximum(statistics.n_rows, 1.0)[:, None]
    lengths = family.settings.step_constant / np.maximum(first_weights, least)
    ratio = lengths / family.model.longest_step(statistics)
    halvings = np.where(ratio > DIVERGES, np.ceil(np.log2(np.maximum(ratio, 1.0) / HALVED)), 0.0)
    return lengths * 0.5**halvings, halvings.sum(axis=1)


def thresholded(components, settings):
    """Components pulled to zero by the threshold; an intercept, the last column, is no feature."""
    if not settings.threshold:
        return components
    held = soft_threshold(components, settings.threshold)
    last = components.shape[-1] - settings.has_intercept
    held[..., last:] = components[..., last:]
    return held


# ------------------------------------------------------------------ central update


class FedGrem(Coordinator):
    """Every site is pulled to a robust centre."""

    def __init__(self, settings: FedGremSettings, roster: Roster) -> None:
        super().__init__(settings, roster)
        self.penalty = float(settings.penalty_start)
        self.shared_weights = np.full(self.order.shape, 1.0 / self.order.shape[1])

    @property
    def fields(self) -> tuple[str, ...]:
        """The adaptive rule needs sampling variances, shared weights need weights."""
        variances = ("variances",) * (self.settings.shrinkage == "adaptive")
        return variances + ("weights",) * self.settings.shares_weights + super().fields

    @property
    def personal(self) -> Arrays:
        """With the weights, if they are shared."""
        sent = {"weights": self.shared_weights} if self.settings.shares_weights else {}
        return {**super().personal, **sent}

    @property
    def usual(self) -> Arrays:
        """With the spread between the sites' own fits, from their sampling variances."""
        if self.settings.shrinkage != "adaptive":
            return super().usual
        return {**super().usual, "between": self._shrunk().between_variance}

    @property
    def last_fields(self) -> tuple[str, ...]:
        """Slopes and curvatures, if components shall have standard errors."""
        wanted = self.settings.standard_errors
        return ("slope", "curvature") if wanted and self._few_enough else ()

    @property
    def in_doubt(self) -> bool:
        """Whether more sites than may be odd found groups that could be matched otherwise."""
        settings, ambiguous = self.settings, self.ambiguous[self.last.heard]
        asked = settings.plain and settings.second_fit and not settings.standard_errors
        asked = asked and settings.given_start is None and len(ambiguous) >= LEAST_SITES
        rows = np.median(self.rows[self.last.heard]) if asked else np.inf
        few = rows < ROWS_OF_A_GROUP * self.shared.shape[1]
        return bool(few and ambiguous.mean() > 1.0 - MOST_TRUSTED)

    @property
    def _few_enough(self) -> bool:
        return int(np.prod(self.shared.shape[1:])) <= MOST_COEFFICIENTS

    def result(self, replies: Replies, history: list[float], converged: bool) -> JoinedResult:
        """With standard errors, if they are wanted."""
        result = super().result(replies, history, converged)
        if "slope" not in replies:
            return result
        return result.with_errors(self._errors(replies, result.ambiguous))

    def _errors(self, replies: Replies, ambiguous: Bools) -> ComponentErrors:
        """From slopes and curvatures; sites whose groups are not sure to be the others' are out."""
        assert self.centers is not None
        m, n_components, p = self.shared.shape
        size, who = n_components * p, replies.clients
        upper = np.triu_indices(size)
        curvature = np.zeros((len(who), size, size))
        curvature[:, upper[0], upper[1]] = curvature[:, upper[1], upper[0]] = replies["curvature"]
        used = over_roster(self.rows[who] > 0, who, m, missing=False) & ~ambiguous
        told = Told(
            over_roster(replies["slope"].reshape(-1, size), who, m, missing=0.0),
            over_roster(curvature, who, m, missing=0.0),
            np.repeat(self._shrunk().belonging, p, axis=1),
            (self.shared - self.centers).reshape(m, size),
            used,
        )
        root, numbers = self._root, np.inf
        if self.family.sent_for_scale:
            numbers = self.rows[used].sum() * (1 if self.settings.family == "regression" else p)
        return component_errors(told, self.between_variance, root @ root.T, float(numbers))

    def combine(self) -> None:
        """The adaptive rule, or the paper's; appendix D treats the weights likewise."""
        if self.settings.shrinkage == "adaptive":
            self._adaptively()
        else:
            self._as_printed()
        if self.settings.shares_weights:
            self.shared_weights = self._shrunk_weights()

    def _adaptively(self) -> None:
        """Each site as far as its sampling variance warrants."""
        root, made = self._root, self._shrunk()
        self.shared, self.centers = made.estimates @ root.T, made.center @ root.T
        self.between_variance, self.outlier_score = made.between_variance, made.outlier_score

    def _shrunk(self) -> AdaptivelyShrunk:
        """In coordinates in which the common covariance, if there is one, is the identity."""
        variances, root = self.last["variances"], self._root
        known = np.where(variances < sites.UNKNOWN_VARIANCE, variances, np.inf)
        start = None if self.centers is None else _whitened(self.centers, root)
        estimates = _whitened(self.estimates, root)
        return shrink_adaptively(estimates, known, start=start, n_looks=known.shape[1])

    @property
    def _root(self) -> Floats:
        """A root of the common covariance; of the identity where there is none."""
        known = self.covariance if self.covariance.size else np.eye(self.estimates.shape[-1])
        return np.asarray(np.linalg.cholesky(known))

    def _as_printed(self) -> None:
        """Algorithm 1 with the penalties of B.1."""
        settings, (m, _, p) = self.settings, self.estimates.shape
        growth = settings.penalty_constant * np.sqrt(p + np.log(m))
        self.penalty = settings.penalty_decay * self.penalty + growth
        made = shrink_to_center(
            self.estimates,
            self.counted_rows,
            self.penalty,
            start=self.centers,
            solver=settings.solver,
        )
        self.shared, self.centers = made.estimates, made.center
        away = np.linalg.norm(self.estimates - self.centers, axis=-1).mean(axis=1)
        typical = np.median(away)
        spread = np.median(np.abs(away - typical)) / NORMAL_QUARTILE
        least = LEAST_SPREAD_SHARE * max(typical, TINY)
        self.outlier_score = (away - typical) / max(spread, least)

    def _shrunk_weights(self) -> Floats:
        """Weights pulled together; a share w of n rows has sampling variance w(1-w)/n."""
        weights, rows = self.last["weights"], self.counted_rows[:, None]
        noise = (weights * (1 - weights) / np.maximum(rows, 1.0)).mean(axis=1, keepdims=True)
        noise = np.where(rows > 0, np.maximum(noise, LEAST_WEIGHT_NOISE), np.inf)
        made = shrink_adaptively(weights[:, None, :], noise)
        positive = np.maximum(made.estimates[:, 0], LEAST_WEIGHT)
        return positive / positive.sum(axis=1, keepdims=True)


def _whitened(points: Floats, root: Any) -> Any:
    """Points in coordinates in which the covariance root root' is the identity."""
    return np.linalg.solve(root, points[..., None])[..., 0]


# ------------------------------------------------------------------ Algorithm 1


def program(roster: Roster, settings: FedGremSettings) -> Program:
    """FedGrEM."""
    if settings.shaped:
        return shaped.program(roster, settings)
    return joined(FedGrem(settings, roster))


def joined(server: FedGrem) -> Program:
    """Sites go on from their own fits; from one mixture of all, where these do not go together."""
    yield from server.begin()
    if server.in_doubt:
        return (yield from shaped.program(server.roster, server.settings, server.middle))
    return (yield from rounds(server))


def alternate(server: Coordinator) -> Program:
    """Start, and rounds."""
    yield from server.begin()
    return (yield from rounds(server))


def rounds(server: Coordinator) -> Program:
    """Central and local updates until nothing moves; then the sites settle their weights."""
    settings, history, at_rest = server.settings, [], 0
    for number in range(1, settings.max_rounds + 1):
        before = server.shared
        server.combine()
        history.append(largest_change(before, server.shared))
        still = number > FIRST_ROUNDS and history[-1] <= settings.tol
        at_rest = at_rest + 1 if still else 0
        if at_rest >= settings.rounds_at_rest:
            break
        replies = yield server.ask(f"moved {history[-1]:.1e}", settings.fraction)
        server.hear(replies)
    else:
        server.combine()
    converged = at_rest >= settings.rounds_at_rest
    replies = yield server.last_question
    return server.result(replies, history, converged)


IMPROVE = Step(
    improve,
    {"components": sites.IMPROVED, "rows": sites.ROWS, "halvings": sites.HALVINGS},
    sites.COMMON,
    sites.PERSONAL,
    sites.OPTIONAL,
)

FEDGREM = Algorithm(
    name="fedgrem",
    settings=FedGremSettings,
    prepare=prepare,
    program=program,
    result=FedGremResult,
    steps={
        **sites.START,
        **shaped.STEPS,
        "start_again": sites.START_AGAIN,
        "improve": IMPROVE,
        "settle": sites.SETTLE_SURELY,
        **FEDERATED_START,
    },
)
