"""Does joining help me? Left-out rows of every site say so: alone, joined, and all as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fedkin.arrays import Array, Floats
from fedkin.federation import Federation
from fedkin.inference.gains import Gains, gains
from fedkin.inference.held_out import RMSE, HeldOut, rows_left_out, sites_left_out
from fedkin.names import listed, sites_listed
from fedkin.tables import Summary, Table, read_out

ALONE, JOINING, ONE = "alone", "joining", "one model"
HELPS, NONE, HURTS, OPEN = "helps", "no difference", "hurts", "cannot tell"
# Differences below these do not matter to a person: nats a row, shares of an RMSE, shares of rows.
MARGINS = {"log": 0.05, RMSE: 0.05, "error": 0.02}
WORDS = {"log": "log score", RMSE: "RMSE", "error": "error"}
# The margin is at least so many half widths of a typical site's interval: a difference of twice
# that is seen nearly always, and none at all is called none nearly always.
HALF_WIDTHS = 2.0
# A margin over so many times what matters to a person calls nothing "no difference": rows of sites
# whose intervals are that wide cannot tell.
MOST_MARGINS = 5.0
# A few sites make the mean gain if it is more than so many times that of the median site.
OF_A_FEW = 2.0
# A gain of the median site below this share of what matters to a person is told in words.
NEXT_TO_NOTHING = 0.1
# Changes of the median site's RMSE below this many per cent are none.
LEAST_CHANGE = 0.5
# Folds of sites, for sites that come later.
SITE_FOLDS = 5
# Folds of rows: ten for the answer, five besides to see what more rows for training would change.
FOLDS = (10, 5)


@dataclass(frozen=True)
class Benefit:
    """Whether joining helps each site; prints as a sentence and tables.

    Attributes
    ----------
    method : str
        The way of joining.
    metric : {"log", "rmse", "error"}
        What is compared: log score of a row, root mean squared error, or share of wrong classes.
    margin : float
        Differences up to this count as none: nats, a share of the site's RMSE alone, or a share of
        rows. Over five times what matters to a person nothing is called none.
    level : float
        Of intervals: of what joining changes at a site like this one, borrowing from the others;
        and, wider, of what it changed for the two models fitted (`own_low`, `own_high`).
    held_out : HeldOut
        Sums of scores of left-out rows.
    new_sites : HeldOut or None
        The same with whole sites left out.
    """

    method: str
    metric: str
    margin: float
    floor: float
    level: float
    held_out: HeldOut
    new_sites: HeldOut | None = None

    # ------------------------------------------------------------ numbers

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites."""
        return self.held_out.names

    @cached_property
    def scores(self) -> Table:
        """Left-out score of every way at every site."""
        means = self.held_out.means(self.metric)
        return Table({"site": list(self.sites), **dict(zip(self.held_out.ways, means))})

    @cached_property
    def against_alone(self) -> Gains:
        """What joining gains over staying alone; more is better, whatever the metric."""
        return self._gains(JOINING, ALONE)

    @cached_property
    def against_one(self) -> Gains:
        """What joining gains over one model for all."""
        return self._gains(JOINING, ONE)

    @property
    def gain(self) -> Floats:
        """Difference to staying alone at every site, (m,)."""
        return self.against_alone.gain

    @property
    def interval(self) -> Floats:
        """Its interval, (m, 2)."""
        return np.stack([self.against_alone.low, self.against_alone.high], axis=1)

    @cached_property
    def verdicts(self) -> Array:
        """A word for every site: helps, no difference, hurts, or cannot tell."""
        unit, found = self._unit(), self.against_alone
        cases = zip(found.gain / unit, found.low / unit, found.high / unit)
        return np.array([self._verdict(*case) for case in cases], dtype=object)

    @property
    def overall(self) -> str:
        """The word for the mean over sites; its margin is what matters to a person."""
        found = self.against_alone
        unit = float(np.nanmean(self._unit()))
        ends = (found.mean / unit, found.mean_low / unit, found.mean_high / unit)
        return _word(*ends, self.floor, self.floor)

    def share(self, verdict: str) -> float:
        """The share of the sites with this verdict."""
        return float(np.mean(self.verdicts == verdict))

    def by(self, metric: str) -> Benefit:
        """The same left-out rows by another metric, with its own margin."""
        if metric not in self.held_out.metrics:
            raise ValueError(f"metric must be one of {listed(sorted(self.held_out.metrics))}")
        return judged(replace(self, metric=metric), None)

    def _gains(self, way: str, other: str) -> Gains:
        return gains(self.held_out.paired(self.metric, way, other), self.level)

    def _unit(self) -> Floats:
        """What a margin of 1 means at every site: RMSE is judged by shares of the site's own."""
        if self.metric != RMSE:
            return np.ones(len(self.sites))
        alone = self.held_out.means(RMSE)[self.held_out.ways.index(ALONE)]
        return np.where(alone > 0, alone, 1.0)

    def _verdict(self, gain: float, low: float, high: float) -> str:
        return _word(gain, low, high, self.margin, self.floor)

    # ------------------------------------------------------------ words

    @property
    def sentence(self) -> str:
        """The answer, to be read out."""
        m, verdicts = len(self.sites), self.verdicts
        found = self.against_alone
        counts = [(w, int((verdicts == w).sum())) for w in (HELPS, NONE, HURTS, OPEN)]
        told = {
            HELPS: "helps {}",
            NONE: "makes no difference at {}",
            HURTS: "hurts {}",
            OPEN: "leaves open what it does at {}",
        }
        parts = [told[word].format(n) for word, n in counts if n]
        said = " and ".join([", ".join(parts[:-1]), parts[-1]]) if parts[1:] else parts[0]
        answer = f"Joining ({self.method}) {said} of {m} sites"
        hurt = [name for name, word in zip(self.sites, verdicts) if word == HURTS]
        named = f" ({listed(hurt)} {'are' if len(hurt) > 1 else 'is'} hurt)" if hurt else ""
        ends = f"{read_out(found.mean_low)} to {read_out(found.mean_high)}"
        mean = (
            f"on average it gains {read_out(found.mean)} in {WORDS[self.metric]} ({ends}) over "
            "staying alone"
            if not found.mean < 0
            else f"on average it loses {read_out(-found.mean)} in {WORDS[self.metric]} against "
            f"staying alone (a gain from {ends})"
        )
        sentences = [f"{answer}{named}; {mean}{self._typical_in_words()}.", self._error_in_words()]
        return " ".join([*filter(None, sentences), self._margin_in_words()])

    def _typical_in_words(self) -> str:
        """What the median site gains, where a few sites make the mean."""
        found = self.against_alone
        known = found.own[np.isfinite(found.own)]
        matters = self.floor * float(np.nanmean(self._unit()))
        if abs(found.mean) <= matters or not len(known):
            return ""
        median = float(np.median(known))
        if found.mean * median > 0 and abs(found.mean) <= OF_A_FEW * abs(median):
            return ""
        told = f"{'gains' if median > 0 else 'loses'} {read_out(abs(median))}"
        if abs(median) < NEXT_TO_NOTHING * matters:
            told = "gains next to nothing"
        return f", but a few sites make that mean: the median site {told}"

    def _error_in_words(self) -> str:
        """What becomes of the error beside the log score, which few can picture."""
        if self.metric != "log" or RMSE not in self.held_out.metrics:
            return ""
        means, ways = self.held_out.means(RMSE), self.held_out.ways
        alone, joining = means[ways.index(ALONE)], means[ways.index(JOINING)]
        known = np.isfinite(alone) & np.isfinite(joining) & (alone > 0)
        if not known.any():
            return ""
        change = 100 * (float(np.median(joining[known] / alone[known])) - 1)
        if abs(change) < LEAST_CHANGE:
            return "The error (RMSE) of the median site stays the same."
        word = "falls" if change < 0 else "rises"
        return f"The error (RMSE) of the median site {word} by {read_out(abs(change), 2)} %."

    def _margin_in_words(self) -> str:
        unit = {"log": "a row", RMSE: "of a site's RMSE", "error": "of the rows"}[self.metric]

        def told(margin: float) -> str:
            if self.metric == "log":
                return f"{read_out(margin, 2)} {unit}"
            return f"{read_out(100 * margin, 2)} % {unit}"

        margin, reach = told(self.margin), told(self.margin / HALF_WIDTHS)
        if self.margin <= self.floor:
            return f"Differences up to {margin} count as none."
        if self.margin <= MOST_MARGINS * self.floor:
            return f"Where rows cannot tell a gain from zero, up to {margin} counts as none."
        return (
            f"Rows are too few to say that joining makes no difference: at a typical site less "
            f"than {reach} cannot be told from chance."
        )

    def table(self) -> Table:
        """Every site, the largest gain first."""
        means, found = self.held_out.means(self.metric), self.against_alone
        order = np.argsort(-np.nan_to_num(found.gain, nan=-np.inf), kind="stable")
        columns: dict[str, Any] = {
            "site": [self.sites[k] for k in order],
            "rows": self.held_out.sizes[order].astype(int),
        }
        columns |= {way: means[i][order] for i, way in enumerate(self.held_out.ways)}
        columns |= {"gain": found.gain[order], "low": found.low[order], "high": found.high[order]}
        columns["verdict"] = self.verdicts[order]
        columns |= {"own rows: low": found.own_low[order], "high ": found.own_high[order]}
        title = f"{WORDS[self.metric]} of left-out rows; gain over alone, {self.level:.0%} interval"
        return Table(columns, title)

    def new_site_table(self) -> Table | None:
        """Scores of whole sites that were left out."""
        if self.new_sites is None:
            return None
        means = self.new_sites.means(self.metric)
        found = gains(self.new_sites.paired(self.metric, JOINING, ONE), self.level)
        columns = {"site": list(self.sites), **dict(zip(self.new_sites.ways, means))}
        columns |= {"gain": found.gain, "low": found.low, "high": found.high}
        return Table(columns, "Sites left out as a whole: joining without rows of their own")

    def summary(self) -> Summary:
        """Sentence and tables."""
        tables, new = {"sites": self.table()}, self.new_site_table()
        if new is not None:
            tables["new sites"] = new
        words = [self.sentence, *self._not_heard()]
        if ONE not in self.held_out.ways:
            return Summary(f"Benefit of {self.method}", tables, words)
        found = self.against_one
        one = (
            f"Over one model for all it gains {found.mean:.3g} ({found.mean_low:.3g} to "
            f"{found.mean_high:.3g})."
        )
        return Summary(f"Benefit of {self.method}", tables, [*words, one])

    def _not_heard(self) -> list[str]:
        """Sites of which no row was left out and scored."""
        silent = [site for site, n in zip(self.sites, self.held_out.sizes) if not n]
        if not silent:
            return []
        why = "their own rules kept left-out rows back, or folds have too few of them"
        return [f"Nothing is known of {sites_listed(silent)}: {why}."]

    def __str__(self) -> str:
        return str(self.summary())

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    def plot(self, ax: Any = None) -> Any:
        """Sites sorted by gain, with intervals and the margin; returns the axes."""
        from fedkin.inference.pictures import intervals_by_site

        found, unit = self.against_alone, self._unit()
        colours = {HELPS: "#009E73", NONE: "#0072B2", HURTS: "#D55E00", OPEN: "#7f7f7f"}
        label = f"gain in {WORDS[self.metric]}" + (" (share)" if self.metric == RMSE else "")
        return intervals_by_site(
            self.sites,
            np.stack([found.gain, found.low, found.high]) / unit,
            [colours[word] for word in self.verdicts],
            margin=self.margin,
            label=label,
            legend={word: colours[word] for word in dict.fromkeys(self.verdicts)},
            ax=ax,
        )


def benefit(
    estimator: Any,
    X: Any = None,
    y: Any = None,
    groups: Any = None,
    *,
    metric: str | None = None,
    folds: int | Sequence[int] = FOLDS,
    new_sites: bool = True,
    margin: float | None = None,
    level: float = 0.95,
    random_state: int = 0,
) -> Benefit:
    """Whether joining helps each site, by rows left out.

    Parameters
    ----------
    estimator : estimator
        The way of joining, fitted or not; it is not changed.
    X, y, groups : rows, target and site of each row, or a Federation
        None asks the sites that the estimator's engine reaches, and sums of scores of left-out
        rows leave them; before that sums of products by fold (MixedModel, FMLR, ODCL), or what the
        method sends, once for every fold (FGPR, FedGrEM, FedEM, FedGMM, TGMM: one model for all is
        not compared).
        Where rows themselves are modelled, y are classes that fits do not see, to count errors by.
    metric : {"log", "rmse", "error"} or None
        None is the log score; see `Benefit.by` for the others.
    folds : int or sequence of int
        Numbers of folds, a repetition each. With two of them differences are carried on to what
        all rows of a site would give.
    new_sites : bool
        Whether whole sites are left out, too.
    margin : float or None
        Differences up to this count as none; None is 0.05 nats a row, 5 % of a site's RMSE, or 2 %
        of the rows, and more where the rows cannot tell so little; where they tell only five times
        as much, a verdict is "cannot tell" instead of "no difference".
    level : float
        Of the intervals.
    random_state : int
        Decides the folds.

    Returns
    -------
    Benefit
    """
    numbers = (folds,) if isinstance(folds, int) else tuple(folds)
    _check(numbers, level, margin)
    if X is None and getattr(estimator, "engine", None) is not None:
        # Sites hold their rows: one repetition, with the fewest folds, and no site left out.
        held = estimator._scores_at_sites(min(numbers), random_state)
        return _judged(estimator, metric, level, margin, held)
    ways, left = estimator._ways(), None
    federation = _federation(estimator, X, y, groups)
    held = rows_left_out(estimator, ways, federation, numbers, random_state)
    if new_sites and federation.n_clients > 1:
        both = {name: ways[name] for name in (JOINING, ONE)}
        left = sites_left_out(estimator, both, federation, SITE_FOLDS, random_state)
    return _judged(estimator, metric, level, margin, held, left)


def _judged(
    estimator: Any,
    metric: str | None,
    level: float,
    margin: float | None,
    held: HeldOut,
    new_sites: HeldOut | None = None,
) -> Benefit:
    metric = "log" if metric is None else metric
    if metric not in held.metrics:
        raise ValueError(f"metric must be one of {listed(sorted(held.metrics))}, not {metric!r}")
    name = type(estimator).__name__
    return judged(Benefit(name, metric, 0.0, 0.0, level, held, new_sites), margin)


def of_ways(held: HeldOut, way: str, metric: str = "log", level: float = 0.95) -> Benefit | None:
    """What one of several ways gives over staying alone; None if nobody stayed alone to compare."""
    if way == ALONE or ALONE not in held.ways:
        return None
    named = replace(held, ways=tuple(JOINING if name == way else name for name in held.ways))
    return judged(Benefit(repr(way), metric, 0.0, 0.0, level, named), None)


def judged(found: Benefit, margin: float | None) -> Benefit:
    """With a margin: the one given, or the usual one, or what the rows can tell."""
    if margin is not None:
        return replace(found, margin=margin, floor=margin)
    floor = MARGINS[found.metric]
    wide = (found.against_alone.high - found.against_alone.low) / (2.0 * found._unit())
    known = wide[np.isfinite(wide)]
    typical = float(np.median(known)) if len(known) else 0.0
    return replace(found, margin=max(floor, HALF_WIDTHS * typical), floor=floor)


def _word(gain: float, low: float, high: float, margin: float, floor: float) -> str:
    """The verdict about a difference; what is surely more than nothing and matters, is told."""
    if not np.isfinite([gain, low, high]).all():
        return OPEN
    if low > 0 and gain > floor:
        return HELPS
    if high < 0 and gain < -floor:
        return HURTS
    return NONE if margin <= MOST_MARGINS * floor and max(-low, high) <= margin else OPEN


def _federation(estimator: Any, X: Any, y: Any, groups: Any) -> Federation:
    """The data with whatever target there is; classes as numbers."""
    if isinstance(X, Federation):
        return X
    if X is None:
        raise ValueError("benefit needs data: benefit(estimator, X, y, groups)")
    if groups is None:
        raise ValueError("benefit compares sites: groups must name the site of each row")
    if getattr(estimator, "formula", None) is not None:
        raise ValueError("benefit takes no formula; give X, y and groups, or a Federation")
    target = None if y is None else np.asarray(y)
    if target is not None and target.dtype.kind not in "fiub":
        target = np.unique(target, return_inverse=True)[1].astype(float)
    return Federation.from_groups(X, groups, target)


def _check(folds: Sequence[int], level: float, margin: float | None) -> None:
    if not folds or min(folds) < 2:
        raise ValueError(f"folds must be at least 2, not {tuple(folds)}")
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, not {level}")
    if margin is not None and not margin >= 0:
        raise ValueError(f"margin must not be negative, not {margin}")
