"""What a site gains, with intervals, from paired scores of rows that were left out.

Every site has the mean of paired differences over its left-out rows. Two questions are asked of it:

*What does joining change at a site like this one?* the expected difference, over the rows the site
might as well have had. Differences of sites are spread normally about a line in 1 / rows; what the
site's own rows leave open, the others fill in. The spread is integrated over (a flat prior), so
that few sites borrow little, and sites that truly differ borrow nothing.

*What did it change for the two models that were fitted?* This is the same plus luck, of which rows
left out say next to nothing (Bates, Hastie, Tibshirani 2024): the interval is the site's own, with
the variance widened for overlapping training sets (Nadeau, Bengio 2003).

For both, a site's variance is pulled towards that of sites of its size (Smyth 2004), for rows are
few and their differences have long tails; and where rows were left out in folds of two sizes, the
slope in 1 / rows^2 is known, and differences are carried on to what all rows of a site would give.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedkin.arrays import Bools, Floats

# Grid of the spread between sites, in units of the estimates' spread.
SPREADS = np.concatenate([[0.0], np.geomspace(1e-3, 3.0, 79)])
# With fewer sites nothing is borrowed.
LEAST_SITES = 4
# Sizes of sites that differ by less than this factor tell no trend of the variance in the size.
SIZES_DIFFER = 1.5
# Degrees of freedom beyond which Student's t is the normal law.
MOST_DEGREES = 1e6
# Differences are carried on at most so many times as far as a site's folds of two sizes are from
# their mean. Ten and five folds of many rows are carried 2.5 times as far; of sites with five rows
# or fewer they are the same folds, and tell nothing.
FARTHEST = 4.0
# With fewer left-out rows a site has no variance of its own.
LEAST_ROWS = 2


@dataclass(frozen=True)
class Paired:
    """Paired differences of left-out rows, by site and by repetition.

    totals, squares : (repeats, m) sums over rows of the difference and of its square
    rows : (repeats, m) rows left out; trained : (repeats, m) rows the site kept for training then
    sizes : (m,) rows of the site
    """

    totals: Floats
    squares: Floats
    rows: Floats
    trained: Floats
    sizes: Floats


@dataclass(frozen=True)
class Gains:
    """Differences of m sites (NaN where none is known), and the mean over sites.

    gain, low, high : expected at a site like this one, with what other sites tell
    own, own_low, own_high : of the two models fitted, from the site's own rows alone
    """

    gain: Floats
    low: Floats
    high: Floats
    own: Floats
    own_low: Floats
    own_high: Floats
    mean: float
    mean_low: float
    mean_high: float
    between: float
    """Standard deviation of the sites' expected differences about their line."""
    carried: float
    """Mean of what was added because training lacked the rows left out."""


def gains(paired: Paired, level: float = 0.95) -> Gains:
    """Differences with intervals, of every site and of the mean over sites."""
    from scipy.stats import t

    rows = paired.rows.sum(axis=0)
    raw = np.where(rows > 0, paired.totals.sum(axis=0) / np.maximum(rows, 1.0), np.nan)
    moved = _to_all_rows(paired)
    own = raw + moved
    found = _variances(paired)
    half = t.ppf(0.5 + level / 2, found.degrees) * np.sqrt(_overlap(paired) * found.own)
    known = np.isfinite(own) & np.isfinite(half)
    gain, error, between = own.copy(), np.sqrt(found.own), np.nan
    quantile = t.ppf(0.5 + level / 2, found.degrees)
    if known.sum() >= LEAST_SITES:
        lines = _lines(1.0 / np.maximum(paired.sizes, 1.0), paired.sizes, known)[known]
        gain[known], error[known], between = posterior(own[known], found.typical[known], lines)
        quantile = np.full(len(own), t.ppf(0.5 + level / 2, MOST_DEGREES))
    mean, wide = _mean(own[known], found.own[known])
    reach = t.ppf(0.5 + level / 2, max(int(known.sum()) - 1, 1)) * wide
    carried = float(moved[known].mean()) if known.any() else 0.0
    reached = quantile * error
    return Gains(
        gain=gain,
        low=gain - reached,
        high=gain + reached,
        own=own,
        own_low=own - half,
        own_high=own + half,
        mean=mean,
        mean_low=mean - reach,
        mean_high=mean + reach,
        between=float(between),
        carried=carried,
    )


def posterior(estimates: Floats, variances: Floats, lines: Floats) -> tuple[Floats, Floats, float]:
    """Means and standard deviations of true values about a regression, and their spread.

    estimates, variances : (m,); lines : (m, p) regressors of the true values. Priors are flat in
    the coefficients and in the spread.
    """
    spreads = SPREADS * max(float(np.std(estimates)), np.sqrt(float(np.mean(variances))), 1e-300)
    total = variances[:, None] + spreads**2
    weights = 1.0 / total
    gram = np.einsum("mp,mg,mr->gpr", lines, weights, lines)
    inverse = np.linalg.inv(gram)
    cross = np.einsum("mp,mg,m->gp", lines, weights, estimates)
    expected = lines @ np.einsum("gpr,gr->pg", inverse, cross)
    log_share = -0.5 * (np.log(total).sum(axis=0) + np.linalg.slogdet(gram)[1])
    log_share -= 0.5 * (weights * (estimates[:, None] - expected) ** 2).sum(axis=0)
    # Flat in the spread: a point of the grid stands for the length around it.
    share = np.exp(log_share - log_share.max()) * np.gradient(spreads)
    share /= share.sum()
    kept = spreads**2 * weights
    means = kept * estimates[:, None] + (1.0 - kept) * expected
    about = kept * variances[:, None]
    about = about + (1.0 - kept) ** 2 * np.einsum("mp,gpr,mr->mg", lines, inverse, lines)
    mean = means @ share
    spread = about @ share + (means - mean[:, None]) ** 2 @ share
    return mean, np.sqrt(spread), float(np.sqrt(share @ spreads**2))


@dataclass(frozen=True)
class Variances:
    """Variances (m,) of sites: pulled to those of their size, and what is typical of the size."""

    own: Floats
    typical: Floats
    degrees: Floats


def moderated(variances: Floats, degrees: Floats, sizes: Floats) -> Variances:
    """Variances pulled towards those of sites of their size, with their degrees of freedom.

    True variances are scaled inverse chi-squared over sites, about a line in the logarithm of the
    size; line and degrees are those that give the mean and variance of the logarithms.
    """
    from scipy.special import digamma, polygamma

    known = (variances > 0) & (degrees > 0)
    if known.sum() < LEAST_SITES:
        return Variances(variances, variances, degrees)
    half = degrees[known] / 2
    logs = np.log(variances[known]) - digamma(half) + np.log(half)
    lines = _lines(np.log(np.maximum(sizes, 1.0)), sizes, known)
    coef = np.linalg.lstsq(lines[known], logs, rcond=None)[0]
    residual = logs - lines[known] @ coef
    spare = max(int(known.sum()) - lines.shape[1], 1)
    excess = float(residual @ residual / spare - np.mean(polygamma(1, half)))
    prior = 2.0 * inverse_trigamma(excess) if excess > 0 else MOST_DEGREES
    center = np.exp(lines @ coef + float(digamma(prior / 2) - np.log(prior / 2)))
    pooled = (degrees * variances + prior * center) / (degrees + prior)
    # The typical one is a mean of variances, which logarithms miss where tails are long.
    center = center * float(np.mean(pooled[known]) / np.mean(center[known]))
    return Variances(pooled, center, np.minimum(degrees + prior, MOST_DEGREES))


def _lines(regressor: Floats, sizes: Floats, known: Bools) -> Floats:
    """A level, and the regressor (of mean 0 and size about 1) where sizes of sites differ."""
    level = np.ones((len(sizes), 1))
    enough = known.sum() >= 2 * LEAST_SITES
    if not enough or sizes[known].max() < SIZES_DIFFER * max(sizes[known].min(), 1.0):
        return level
    away = regressor - regressor[known].mean()
    return np.column_stack([level, away / np.abs(away[known]).max()])


def inverse_trigamma(value: float) -> float:
    """x with trigamma(x) = value, by Newton's steps on 1 / trigamma, which is convex."""
    from scipy.special import polygamma

    x = 0.5 + 1.0 / value
    for _ in range(50):
        step = polygamma(1, x) * (1.0 - polygamma(1, x) / value) / polygamma(2, x)
        x += step
        if abs(step) <= 1e-10 * x:
            break
    return float(min(x, MOST_DEGREES))


def _variances(paired: Paired) -> Variances:
    """Variance of a row's difference over the rows, NaN where there is none.

    Rows count once however often they were left out.
    """
    rows = paired.rows
    count = rows.max(axis=0, initial=0.0)
    several = rows >= LEAST_ROWS
    within = np.maximum(paired.squares - paired.totals**2 / np.maximum(rows, 1.0), 0.0)
    each = np.where(several, within / np.maximum(rows - 1.0, 1.0), 0.0)
    own = each.sum(axis=0) / np.maximum(several.sum(axis=0), 1)
    degrees = np.where(several.any(axis=0), count - 1.0, 0.0)
    found = moderated(own, degrees, paired.sizes)
    usable = (count > 0) & (found.degrees > 0)
    over = np.where(usable, 1.0 / np.maximum(count, 1.0), np.nan)
    return Variances(found.own * over, found.typical * over, np.maximum(found.degrees, 1.0))


def _overlap(paired: Paired) -> Floats:
    """How much wider overlapping training sets make the variance of a mean of rows, (m,).

    Nadeau and Bengio take a split's variance times (1 / splits + left out / trained). With J =
    repeats * folds splits that is a row's variance over n, times (1 / repeats + n / trained).
    """
    share = paired.sizes / np.maximum(paired.trained, 1.0)
    return np.asarray(1.0 / len(paired.rows) + share.mean(axis=0))


def _to_all_rows(paired: Paired) -> Floats:
    """What the mean difference lacks because training had fewer rows than the site, (m,).

    Differences are straight lines in 1 / rows^2 of one slope for all sites, which repetitions with
    folds of two sizes tell; zero where all had one, or with few sites. (What is lost alone falls
    with 1 / rows; so does, once sites differ, the share of it that others can give.) A slope that
    sites of eight rows tell says nothing of a site of two.
    """
    moved = np.zeros(len(paired.sizes))
    usable = (paired.rows > 0).all(axis=0) & (paired.trained > 0).all(axis=0)
    if len(paired.rows) < 2 or usable.sum() < 2 * LEAST_SITES:
        return moved
    each = paired.totals[:, usable] / paired.rows[:, usable]
    inverse = 1.0 / paired.trained[:, usable] ** 2
    away = inverse - inverse.mean(axis=0)
    apart = float((away**2).sum())
    if apart <= 1e-12 * float((inverse**2).sum()):
        return moved
    slope = float((away * each).sum()) / apart
    share = paired.rows[:, usable] / paired.rows[:, usable].sum(axis=0)
    ahead = 1.0 / paired.sizes[usable] ** 2 - (share * inverse).sum(axis=0)
    reach = FARTHEST * np.abs(away).max(axis=0)
    moved[usable] = slope * np.clip(ahead, -reach, reach)
    return moved


def _mean(estimates: Floats, variances: Floats) -> tuple[float, float]:
    """Mean over sites and its standard error, never below what the rows alone leave open."""
    m = len(estimates)
    if not m:
        return float("nan"), float("nan")
    inside = float(variances.sum()) / m**2
    across = float(np.var(estimates, ddof=1)) / m if m > 1 else 0.0
    return float(estimates.mean()), float(np.sqrt(max(inside, across)))
