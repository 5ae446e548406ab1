"""How unlikely a site is under what the other sites say: p-values, and how many are looked at.

Two things can be odd about a site, and under the model they are independent of each other: where it
lies (its estimates beside those of its kind, `models.site_evidence`) and how noisy it is. The less
likely of the two counts; that there are two is allowed for (Tippett). Odd sites must not hide each
other: centres, spread and noise are found from the sites that are not odd, beginning with
those near the middle.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedkin.arrays import Bools, Floats, Indices
from fedkin.inference.gains import inverse_trigamma
from fedkin.models.site_evidence import (
    Distances,
    SiteEvidence,
    distances,
    inverse,
    ranks,
    real_kinds,
    weight_of,
)

# Rounds in which odd sites are set aside; two or three are usual.
MOST_PASSES = 10
# Noises differ if they do so by this many standard deviations more than chance has it ...
BEYOND_CHANCE = 1.0
# ... and then their logarithms have at least this variance.
LEAST_DIFFERENCE = 1e-6
# Degrees of freedom of what is known for sure.
SURE = 1e8
TINY = 1e-300
# Share of the draws to which the law of the tail is fitted, and its heaviest shape.
TAIL, HEAVIEST = 0.02, 0.4
# From so many sites on a kind has a middle.
HAS_A_MIDDLE = 4
# Of a normal law, the standard deviation over the median distance from the median.
NORMAL_MEDIAN = 1.4826
# Sites so unlikely beside the median are not in the first look at the others.
RARE = 1e-3


class Verdicts(NamedTuple):
    """Of every site, (m,): logarithms of p-values, and what follows from them.

    where, noise : logarithm of the p-value of the site's place and of its noise
    quieter : whether an unusual noise is too small
    """

    log_p: Floats
    where: Floats
    noise: Floats
    quieter: Bools
    odd: Bools
    nearest: Indices
    distances: Distances
    information: Floats

    @property
    def pvalue(self) -> Floats:
        """Chance of something as unlikely at a site like the others, (m,)."""
        return np.exp(self.log_p)

    @property
    def score(self) -> Floats:
        """The p-value as a standard normal deviate: 1.6 is 5 %, 4 is 1 in 30 000."""
        from scipy.special import ndtri_exp

        return np.asarray(-ndtri_exp(self.log_p))


def adjusted(log_p: Floats, method: str) -> Floats:
    """p-values that allow for the number of sites: "holm" (any false alarm) or "bh" (their share).

    NaN stays NaN and does not count.
    """
    out = np.full(len(log_p), np.nan)
    known = np.flatnonzero(np.isfinite(log_p) | (log_p == -np.inf))
    order = known[np.argsort(log_p[known], kind="stable")]
    n = len(order)
    if not n:
        return out
    if method == "holm":
        steps = np.log(np.arange(n, 0, -1)) + log_p[order]
        out[order] = np.exp(np.minimum(np.maximum.accumulate(steps), 0.0))
    elif method == "bh":
        steps = np.log(n / np.arange(1, n + 1)) + log_p[order]
        out[order] = np.exp(np.minimum(np.minimum.accumulate(steps[::-1])[::-1], 0.0))
    else:
        raise ValueError(f"adjust must be 'holm' or 'bh', not {method!r}")
    return out


def judge(evidence: SiteEvidence, level: float, adjust: str) -> Verdicts:
    """How unlikely every site is, with odd ones at `level` kept out of what the others say."""
    usable = ranks(evidence.information) > 0
    labels = real_kinds(evidence.labels, usable)
    counts = _middle(evidence, labels, usable)
    found = _verdicts(evidence, labels, counts, level, adjust)
    for _ in range(MOST_PASSES):
        kept = usable & ~found.odd
        if (kept == counts).all():
            break
        counts = kept
        labels = np.where(labels >= 0, labels, found.nearest)
        found = _verdicts(evidence, real_kinds(labels, kept), counts, level, adjust)
    return found


def _verdicts(
    evidence: SiteEvidence, labels: Indices, counts: Bools, level: float, adjust: str
) -> Verdicts:
    noise = _noise(evidence, counts)
    information = evidence.information / noise.variance[:, None, None]
    place = distances(evidence, information, labels, counts)
    where = _where(evidence, place, noise.freedom, information)
    log_p = _either(where, noise.log_p)
    odd = np.nan_to_num(adjusted(log_p, adjust), nan=1.0) <= level
    return Verdicts(
        log_p, where, noise.log_p, noise.quieter, odd, place.nearest, place, information
    )


def _either(first: Floats, second: Floats) -> Floats:
    """Tippett: log of 1 - (1 - p)^2 for the lesser p of two; the one that is there, if one is."""
    least = np.fmin(first, second)
    both = np.isfinite(first) & np.isfinite(second)
    return np.where(both, least + np.log(2.0 - np.exp(least)), least)


# ------------------------------------------------------------------ where a site lies


def _where(
    evidence: SiteEvidence, place: Distances, noise_freedom: Floats, information: Floats
) -> Floats:
    """Log p-values of distances, (m,): Hotelling's law where the spread is a full matrix."""
    from scipy.stats import f

    if evidence.draws is not None:
        return _by_draws(evidence, place, information)
    rank, square = np.maximum(place.rank, 1.0), place.square
    # Satterthwaite: how well the noise is known matters as far as sampling makes the distance.
    own = np.trace(place.weights @ inverse(information), axis1=1, axis2=2) / rank
    freedom = 1.0 / (1.0 / place.freedom + np.clip(own, 0.0, 1.0) ** 2 / noise_freedom)
    beyond = np.maximum(freedom - rank + 1.0, 1.0) if place.full else freedom
    scaled = square * beyond / freedom if place.full else square
    with np.errstate(invalid="ignore", divide="ignore"):
        share = 1.0 if evidence.chi_squared is None else evidence.chi_squared
        log_p = f.logsf(scaled / rank, share * rank, beyond)
    return np.where(np.isfinite(square), np.minimum(log_p, 0.0), np.nan)


def _by_draws(evidence: SiteEvidence, place: Distances, information: Floats) -> Floats:
    """Log p-values beside simulated sites."""
    assert evidence.draws is not None
    values, vectors = np.linalg.eigh(place.spread)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    departures = np.random.default_rng(0).normal(size=evidence.draws.shape) @ root.T
    scores = evidence.draws + np.einsum("mij,bmj->bmi", information, departures)
    # With r = inv(J) u the distance r' W r is a form in the scores u.
    back = inverse(information)
    form = back @ place.weights @ back
    drawn = np.einsum("bmi,mij,bmj->bm", scores, form, scores, optimize=True)
    log_p = np.full(len(evidence.names), np.nan)
    known = np.isfinite(place.square)
    size = np.round(2.0 * np.log2(np.maximum(evidence.rows, 1.0)))
    for value in np.unique(size[known]):
        who = np.flatnonzero(known & (size == value))
        typical = np.maximum(drawn[:, who].mean(axis=0), TINY)
        ratios = np.sort((drawn[:, who] / typical).ravel())
        log_p[who] = _beyond(ratios, place.square[who] / typical)
    return log_p


def _beyond(drawn: Floats, values: Floats) -> Floats:
    """Logarithm of the share of draws beyond values; Pareto's law for the last of them."""
    from scipy.stats import genpareto

    cut = int(np.ceil((1.0 - TAIL) * len(drawn)))
    threshold, excess = drawn[cut - 1], drawn[cut:] - drawn[cut - 1]
    log_p = np.log((len(drawn) - np.searchsorted(drawn, values) + 1.0) / (len(drawn) + 1.0))
    mean, variance = float(excess.mean()), float(excess.var())
    shape = np.clip(0.5 * (1.0 - mean**2 / max(variance, TINY)), 0.0, HEAVIEST)
    far = values > threshold
    tail = genpareto.logsf(values[far] - threshold, shape, scale=max(mean * (1 - shape), TINY))
    log_p[far] = np.log(TAIL) + tail
    return np.minimum(log_p, 0.0)


def _middle(evidence: SiteEvidence, labels: Indices, usable: Bools) -> Bools:
    """Sites that are near the median of their kind, and have about the median noise, (m,).

    Who lies where hardly anybody of a normal law does waits until the others are judged. Kinds of
    few sites have no middle.
    """
    from scipy.stats import chi2

    near = usable.copy()
    loud = _far_from_median(_log_noise(evidence)[0], usable)
    variance = _noise(evidence, usable & ~loud).variance
    information = evidence.information / variance[:, None, None]
    farthest = chi2.ppf(1.0 - RARE, np.maximum(ranks(information), 1))
    for k in range(int(labels.max(initial=-1)) + 1):
        who = np.flatnonzero(usable & (labels == k))
        if len(who) < HAS_A_MIDDLE:
            continue
        off = evidence.estimates[who] - np.median(evidence.estimates[who], axis=0)
        spread = np.diag((NORMAL_MEDIAN * np.median(np.abs(off), axis=0)) ** 2)
        weight = weight_of(information[who], spread)
        near[who] = np.einsum("mi,mij,mj->m", off, weight, off) <= farthest[who]
    return near & ~loud


def _far_from_median(values: Floats, usable: Bools) -> Bools:
    """Whether numbers are further from the median than hardly any of a normal law, (m,)."""
    from scipy.special import ndtri

    known = usable & np.isfinite(values)
    if known.sum() < HAS_A_MIDDLE:
        return np.zeros(len(values), dtype=bool)
    off = np.abs(values - np.median(values[known]))
    return np.asarray(known & (off > -ndtri(RARE / 2) * NORMAL_MEDIAN * np.median(off[known])))


# ------------------------------------------------------------------ how noisy a site is


def _log_noise(evidence: SiteEvidence) -> tuple[Floats, Floats]:
    """Logarithms of the sites' noise variances without bias, and their variances, (m,); or NaN."""
    from scipy.special import digamma, polygamma

    none = np.full(len(evidence.names), np.nan)
    if evidence.squares is None or evidence.degrees is None:
        return none, none
    some = (evidence.degrees > 0) & (evidence.squares > 0)
    half = np.where(some, evidence.degrees, 2.0) / 2.0
    logs = np.log(np.where(some, evidence.squares, 1.0) / (2.0 * half))
    logs = logs - digamma(half) + np.log(half)
    return np.where(some, logs, np.nan), np.where(some, polygamma(1, half), np.nan)


class Noise(NamedTuple):
    """Of every site, (m,): log p-value of its noise, whether it is too quiet, its noise variance,
    and the degrees of freedom with which that is known."""

    log_p: Floats
    quieter: Bools
    variance: Floats
    freedom: Floats


def _noise(evidence: SiteEvidence, counts: Bools) -> Noise:
    """What is to be said of the sites' noises.

    The logarithm of a variance from n squares varies by trigamma(n / 2); noises of sites may differ
    by degrees besides, as in `gains.moderated`. With one noise for all this is the F test.
    """
    m = len(evidence.names)
    logs, chance = _log_noise(evidence)
    some = np.isfinite(logs)
    part = some & counts
    if evidence.squares is None or evidence.degrees is None or part.sum() < 2:
        total = 1.0
        if some.any():
            assert evidence.squares is not None and evidence.degrees is not None
            total = float(evidence.squares[some].sum() / evidence.degrees[some].sum())
        nothing = np.full(m, np.nan)
        return Noise(nothing, np.zeros(m, dtype=bool), np.full(m, total), np.full(m, SURE))
    squares, degrees = (np.where(some, x, 0.0) for x in (evidence.squares, evidence.degrees))
    differ = _noises_differ(np.where(part, logs, 0.0), np.where(part, 1.0 / chance, 0.0))
    if differ is None:
        return _one_noise(squares, degrees, some, part)
    return _many_noises(squares, degrees, (logs, chance), part, differ)


def _noises_differ(logs: Floats, weights: Floats) -> Floats | None:
    """Variances of true log noises without each site, by moments, (m,); None if there is one noise.

    DerSimonian and Laird, from logs (m,) and the inverses of their variances, 0 for who has no
    part.
    """
    n, total, first = float((weights > 0).sum()), float(weights.sum()), float(weights @ logs)
    second, squares = float(weights @ logs**2), float(weights @ weights)
    statistic = second - first**2 / total
    if statistic <= n - 1 + BEYOND_CHANCE * np.sqrt(2 * (n - 1)):
        return None
    left = np.maximum(total - weights, TINY)
    without = second - weights * logs**2 - (first - weights * logs) ** 2 / left
    excess = without - (n - 1 - (weights > 0))
    scale = left - (squares - weights**2) / left
    return np.maximum(excess / np.maximum(scale, TINY), LEAST_DIFFERENCE)


def _one_noise(squares: Floats, degrees: Floats, some: Bools, part: Bools) -> Noise:
    """The F test of each site's variance beside that of the others."""
    from scipy.stats import f

    own, free = np.where(part, squares, 0.0), np.where(part, degrees, 0.0)
    others = np.maximum(free.sum() - free, 1.0)
    typical = np.maximum((own.sum() - own) / others, TINY)
    ratio = np.where(some, squares / np.where(some, degrees, 1.0) / typical, 1.0)
    first = np.where(some, degrees, 1.0)
    over, under = f.logsf(ratio, first, others), f.logcdf(ratio, first, others)
    variance = np.full(len(some), float(own.sum() / free.sum()))
    return Noise(*_two_sided(over, under, some), variance, np.full(len(some), free.sum()))


def _two_sided(over: Floats, under: Floats, some: Bools) -> tuple[Floats, Bools]:
    """Log p-values, and who is below."""
    log_p = np.minimum(np.minimum(over, under) + np.log(2.0), 0.0)
    return np.where(some, log_p, np.nan), some & (under < over)


def _many_noises(
    squares: Floats, degrees: Floats, found: tuple[Floats, Floats], part: Bools, differ: Floats
) -> Noise:
    """The same for noises that differ: the less surprising of two laws of their logarithms.

    F's law with their mean and variance has the skewness that few rows give; Student's knows that
    the spread of the noises is estimated.
    """
    from scipy.special import digamma
    from scipy.stats import f
    from scipy.stats import t as student

    some = np.isfinite(found[0])
    logs, chance = np.where(some, found[0], 0.0), np.where(some, found[1], 1.0)
    weight = np.where(part, 1.0 / (chance + differ), 0.0)
    left = np.maximum(weight.sum() - weight, TINY)
    off = logs - (weight @ logs - weight * logs) / left
    first = 2.0 * np.array([inverse_trigamma(v) for v in chance + differ])
    second = 2.0 * np.array([inverse_trigamma(v) for v in 1.0 / left])
    ratio = np.exp(np.clip(off + _log_bias(first) - _log_bias(second), -700, 700))
    total = chance + differ + 1.0 / left
    freedom = total**2 * ((weight**2).sum() - weight**2)
    freedom = np.maximum(freedom * (part.sum() - 2) / max(part.sum(), 1), 1.0)
    z = off / np.sqrt(total)
    over = np.maximum(f.logsf(ratio, first, second), student.logsf(z, freedom))
    under = np.maximum(f.logcdf(ratio, first, second), student.logcdf(z, freedom))
    spread = float(np.median(differ[part]))
    prior = 2.0 * inverse_trigamma(spread)
    typical = np.exp(float(weight @ logs / weight.sum()) + digamma(prior / 2) - np.log(prior / 2))
    variance = (prior * typical + squares) / (prior + degrees)
    return Noise(*_two_sided(over, under, some), variance, prior + degrees)


def _log_bias(degrees: Floats) -> Floats:
    """Mean logarithm of chi-squared over its degrees of freedom."""
    from scipy.special import digamma

    return np.asarray(digamma(degrees / 2) - np.log(degrees / 2))
