"""How many groups, kinds or priors? One is always among the answers, and so is "by degrees".

Every number is fitted. BIC decides, from likelihoods in which memberships, and departures of sites,
are summed over; ICL, rows left out and sites drawn anew are second opinions, and are told. Of
priors ICL decides: standardising each site's target makes sites of one prior unlike, and BIC would
count such differences as priors that no site can be told to have.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedkin.arrays import Floats
from fedkin.federation import Federation
from fedkin.inference.held_out import rows_left_out
from fedkin.inference.odd_sites import as_federation
from fedkin.tables import Table
from fedkin.ties import first_least

# Share of the sites that is drawn to see whether they are grouped alike without the others.
DRAWN = 0.75
# Agreement below this is none; by chance alone it is zero, and may be less.
NO_AGREEMENT = 0.005
# A second opinion is told if it differs by more than this many standard errors.
ERRORS = 1.0


@dataclass(frozen=True)
class HowMany:
    """How many groups there are; prints as a sentence and a table.

    Attributes
    ----------
    method : str
        The estimator.
    number : int
        The number recommended; 1 if sites differ by degrees only.
    by_degrees : bool
        Whether sites differ by degrees, besides or instead of by kind.
    answer : str
        The recommendation in words.
    estimator : estimator
        Unfitted, with what is recommended.
    words : tuple of str
        One and many of what is counted.
    criterion : {"bic", "icl"}
        What decides.
    """

    method: str
    number: int
    by_degrees: bool
    answer: str
    estimator: Any
    words: tuple[str, str]
    columns: Mapping[str, Any] = field(repr=False)
    chosen: int = 0
    criterion: str = "bic"

    def table(self) -> Table:
        """A row for everything that was tried."""
        return Table(dict(self.columns), f"How many {self.words[1]}")

    @property
    def reason(self) -> str:
        """Why, in sentences."""
        return " ".join([self._by_criterion(), *self._second_opinions()])

    @property
    def sentence(self) -> str:
        """The answer and its reason, to be read out."""
        return f"{self.answer[0].upper()}{self.answer[1:]}. {self.reason}"

    def __str__(self) -> str:
        return f"{self.sentence}\n{self.table()}"

    def _by_criterion(self) -> str:
        bic = np.asarray(self.columns[self.criterion], dtype=float)
        others = np.nan_to_num(bic, nan=np.inf)
        others[self.chosen] = np.inf
        if not np.isfinite(others).any():
            return "Nothing else can be fitted to these data."
        second = int(np.argmin(others))
        lead = others[second] - bic[self.chosen]
        what = self.columns["what"][second]
        return f"{self.criterion.upper()} is least for it; the next, {what}, has {lead:.3g} more."

    def _second_opinions(self) -> list[str]:
        told = []
        second = "bic" if self.criterion == "icl" else "icl"
        least = int(np.nanargmin(np.asarray(self.columns[second], dtype=float)))
        if least != self.chosen:
            why = ", which wants groups apart," if second == "icl" else ""
            told.append(f"{second.upper()}{why} would have {self.columns['what'][least]}.")
        if "left-out score" in self.columns:
            told.append(self._by_rows_left_out())
        if "stability" in self.columns:
            stable = float(self.columns["stability"][self.chosen])
            if np.isfinite(stable) and self.number > 1:
                share = f"{stable:.0%}" if stable > NO_AGREEMENT else "nothing"
                told.append(f"Without a quarter of the sites {share} of it stays as it is.")
        return told

    def _by_rows_left_out(self) -> str:
        score = np.asarray(self.columns["left-out score"], dtype=float)
        error = np.asarray(self.columns["error of the difference"], dtype=float)
        best = int(np.nanargmax(score))
        lead = score[best] - score[self.chosen]
        if best == self.chosen or not lead > ERRORS * error[best]:
            return "Rows left out agree."
        return (
            f"Rows left out would rather have {self.columns['what'][best]} ({lead:.3g} nats a row "
            f"more): {self._what_that_means(best)}."
        )

    def _what_that_means(self, best: int) -> str:
        """Of rows left out that would rather have something else."""
        if self.columns["by degrees"][best] and not self.by_degrees:
            return "for prediction sites are better taken to differ by degrees"
        if self.columns["number"][best] > self.number:
            return "for prediction more may help than there are"
        return "for prediction fewer may do"

    def plot(self, ax: Any = None, criterion: str = "bic") -> Any:
        """The curve of a criterion over numbers, the choice marked; returns the axes."""
        from fedkin.inference.pictures import curve_over_numbers

        if criterion not in self.columns:
            listed = ", ".join(repr(name) for name in list(self.columns)[3:])
            raise ValueError(f"criterion must be one of {listed}, not {criterion!r}")
        numbers = np.asarray(self.columns["number"])
        values = np.asarray(self.columns[criterion], dtype=float)
        plain = ~np.asarray(self.columns["by degrees"], dtype=bool)
        return curve_over_numbers(
            numbers, values, plain, self.chosen, (self.words[1], criterion), ax
        )


def how_many(
    estimator: Any,
    X: Any,
    y: Any = None,
    groups: Any = None,
    *,
    numbers: Sequence[int] | None = None,
    folds: int = 2,
    resamples: int = 2,
    random_state: int = 0,
) -> HowMany:
    """How many groups, kinds or priors the data have, for the estimator that looks for them.

    Parameters
    ----------
    estimator : estimator
        `FMLR`, `ODCL` or `IFCA` (kinds of sites), `FedGrEM` or a rival (groups inside sites),
        `FGPR` (priors). It is cloned; itself it stays as it is.
    X, y, groups : rows, targets and the site of each row; or X a Federation
    numbers : sequence of int or None
        What is tried besides one; None takes all up to 8 (12 for ODCL and IFCA, 4 for FGPR), as far
        as there are sites or rows.
    folds : int
        Folds of rows that are left out, a second opinion; 0 or 1 leaves it out.
    resamples : int
        How often three quarters of the sites are drawn and fitted alone, another; 0 leaves it out.
    random_state : int
        Decides folds and sites drawn.

    Returns
    -------
    HowMany
    """
    data = estimator._counts.with_codes(estimator, as_federation(X, y, groups))
    words = estimator._counts.open_number(estimator)
    tried = _numbers(estimator, data, numbers, words.most)
    with warnings.catch_warnings():
        # What deserves a warning does so in a fit with the number chosen.
        warnings.simplefilter("ignore")
        rows = _accounts(estimator, data, tried)
        columns = _columns(rows, words)
        if folds > 1:
            columns |= _left_out(estimator, data, rows, folds, random_state)
        if resamples > 0:
            columns["stability"] = _stability(data, rows, resamples, random_state)
    values = columns[words.criterion]
    chosen = int(first_least(np.where(np.isfinite(values), values, np.inf)))
    found = rows[chosen]
    return HowMany(
        type(estimator).__name__,
        found.number,
        found.by_degrees,
        _answer(found, words),
        found.estimator,
        (words.one, words.many),
        columns,
        chosen,
        words.criterion,
    )


@dataclass(frozen=True)
class _Row:
    """Something that was tried: a number, an estimator (None if only its likelihood is known)."""

    number: int
    by_degrees: bool
    estimator: Any
    account: Any


def _numbers(estimator: Any, data: Federation, given: Any, most: int) -> list[int]:
    """The numbers to try, one among them."""
    room = estimator._counts.most_that_fit(estimator, data)
    if given is None:
        return list(range(1, max(min(most, room), 1) + 1))
    wanted = sorted({1, *(int(n) for n in given)})
    if wanted[0] < 1:
        raise ValueError(f"numbers must be at least 1, not {wanted[0]}")
    if wanted[-1] > room:
        raise ValueError(f"there is room for {room}, not for {wanted[-1]}; ask for fewer numbers")
    return wanted


def _accounts(estimator: Any, data: Federation, numbers: Sequence[int]) -> list[_Row]:
    """Fits of every number, then those by degrees: of one, and of the best number of several."""
    counts, rows = estimator._counts, []
    for number in numbers:
        unfitted = counts.with_number(estimator, number)
        model = unfitted.fit(data)
        beside = counts.degrees_beside(model, data) if number == 1 else None
        if beside is not None and data.n_clients > 1:
            rows += [_Row(1, False, unfitted, beside[0]), _Row(1, True, unfitted, beside[1])]
        else:
            rows.append(_Row(number, False, unfitted, counts.account(model, data)))
    other = counts.by_degrees(estimator, data)
    if other is not None and data.n_clients > 1:
        rows.append(_Row(1, True, other, counts.account(other.fit(data), data)))
        best = min((row for row in rows if not row.by_degrees), key=lambda row: row.account.bic)
        several = counts.kinds_by_degrees(estimator, best.number)
        if several is not None and best.number > 1:
            model = several.fit(data)
            rows.append(_Row(best.number, True, several, counts.account(model, data)))
    return rows


def _columns(rows: Sequence[_Row], words: Any) -> dict[str, Any]:
    return {
        "what": [_what(row, words) for row in rows],
        "number": np.array([row.number for row in rows]),
        "by degrees": np.array([row.by_degrees for row in rows]),
        "loglik": np.array([row.account.loglik for row in rows]),
        "bic": np.array([row.account.bic for row in rows]),
        "icl": np.array([row.account.icl for row in rows]),
    }


def _what(row: _Row, words: Any) -> str:
    if row.number == 1:
        return "by degrees" if row.by_degrees else f"one {words.one}"
    return f"{row.number} {words.many}{', by degrees' if row.by_degrees else ''}"


def _answer(row: _Row, words: Any) -> str:
    if row.number == 1 and row.by_degrees:
        return f"one {words.one}: sites differ by degrees"
    if row.number == 1:
        return f"one {words.one}: sites differ too little to tell"
    besides = ", and sites differ by degrees besides" if row.by_degrees else ""
    return f"{row.number} {words.many}{besides}"


# ------------------------------------------------------------------ second opinions


def _left_out(
    estimator: Any, data: Federation, rows: Sequence[_Row], folds: int, seed: int
) -> dict[str, Floats]:
    """Mean log score of left-out rows of everything, and the error of the difference to the best.

    Rows of which only the likelihood is known have that of their estimator.
    """
    ways = {str(k): row.estimator for k, row in enumerate(rows)}
    held = rows_left_out(estimator, ways, data, (folds,), seed)
    totals, n = held.metrics["log"].totals[:, 0], held.rows[0]
    score = totals.sum(axis=1) / max(float(n.sum()), 1.0)
    off = totals - totals[int(np.argmax(score))]
    part = n > 0
    spread = np.std(off[:, part], axis=1, ddof=1) if part.sum() > 1 else np.zeros(len(rows))
    error = spread * np.sqrt(max(int(part.sum()), 1)) / max(float(n.sum()), 1.0)
    return {"left-out score": score, "error of the difference": error}


def _stability(data: Federation, rows: Sequence[_Row], times: int, seed: int) -> Floats:
    """Agreement (adjusted Rand) of labels with those of fits to three quarters of the sites."""
    from sklearn.base import clone
    from sklearn.metrics import adjusted_rand_score

    rng = np.random.default_rng(seed)
    n_drawn = max(int(np.ceil(DRAWN * data.n_clients)), 1)
    draws = [np.sort(rng.choice(data.n_clients, n_drawn, replace=False)) for _ in range(times)]
    found = np.full(len(rows), np.nan)
    for k, row in enumerate(rows):
        if row.number == 1 or row.number > n_drawn:
            continue
        agreed = []
        for who in draws:
            some = data.take(who)
            again = row.estimator._counts.account(clone(row.estimator).fit(some), some).labels
            here = np.isin(data.owner, who) if len(row.account.labels) != data.n_clients else who
            agreed.append(adjusted_rand_score(row.account.labels[here], again))
        found[k] = float(np.mean(agreed))
    return found
