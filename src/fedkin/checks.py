"""Checks of data with codes, as linters have: what a careful person looks for before any fit.

Each check is a function of what it looks at to findings, entered in `CHECKS` by its code. A finding
names the site, the fact and the remedy. None of them stops a fit but FK001 and FK002.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fedkin.arrays import Array, Bools, Floats, Indices
from fedkin.federation import Federation
from fedkin.frames import (
    Finding,
    chosen_columns,
    numeric_table,
    plain_names,
    value_errors,
    with_text_names,
)
from fedkin.levels import Encoding, classes_of, target_column
from fedkin.models.folds import rows_where
from fedkin.models.least_squares import packed_statistics, solve
from fedkin.names import constant_at_all, constant_at_some, listed, name_codes, site_labels
from fedkin.tables import Table

# Numbers that people write for "not known".
STAND_INS = tuple(sign * float("9" * k) for k in (2, 3, 4, 5) for sign in (-1, 1))
# Sites with the same missing values are named one by one up to this many.
TOLD_APART = 5
# No measured number is larger.
LARGEST = 1e30
# A site's scale this many times that of the others is that of other units ...
OTHER_UNITS = 20.0
# ... if it is also this many spreads of the logarithms away, with so many rows and sites.
FAR_IN_SPREADS = 6.0
ROWS_FOR_SCALE = 5
SITES_FOR_SCALE = 4
# A spread below this share of the values is that of their rounding.
ROUNDING = 1e-12
# A column that explains more of the target than this is the target.
SAME_AS_TARGET = 1.0 - 1e-9
# About so many rows are looked at first; who explains less than this of the target there is not it.
ROWS_AT_FIRST, NEARLY_TARGET = 1000, 0.99
# Numbers that are compared with as many others in one go.
NUMBERS_AT_ONCE = 1000
# Share of rows that are copies of others before it is told.
COPIES = 0.05
# A column with more distinct values than this share of the rows is continuous.
CONTINUOUS = 0.5
# Eigenvalues of the correlations below this are a column too many.
COLLINEAR = 1e-9
# The most distinct whole numbers of a target that are classes, one after another without a gap, and
# of a column that are levels: more are years, ages or counts.
MOST_CLASSES = 20
MOST_LEVELS = 5
# Rows a class needs at a site of `ROWS_FOR_CLASSES` rows before it is not rare.
RARE = 0.02
ROWS_FOR_CLASSES = 50
# Share of the variance between sites, and how sure it must be, before sites are said to differ.
LEAST_BETWEEN = 0.05
SURE = 1e-4
ID_NAMES = {"id", "index", "row", "rowid", "row_id", "unnamed: 0", "rownames", ""}


class CheckWarning(UserWarning):
    """A finding of a check; `code` says which, `finding` has the whole of it."""

    def __init__(self, finding: Finding | str) -> None:
        # From its own words, too: test runners send warnings between processes by their text.
        words = finding if isinstance(finding, str) else f"{finding.code} {finding}"
        self.code = words.split(maxsplit=1)[0]
        self.finding = None if isinstance(finding, str) else finding
        super().__init__(words)


@dataclass(frozen=True)
class Looked:
    """What checks look at: rows without missing values, and how many groups are asked for."""

    data: Federation
    n_groups: int | None = None

    @cached_property
    def columns(self) -> list[tuple[str, Floats]]:
        """Columns and target with what they are called."""
        data = self.data
        found = [(f"column {name!r}", data.X[:, j]) for j, name in enumerate(data.feature_names)]
        if data.y is not None:
            found.append((f"target {data.target_name or 'y'!r}", data.y))
        return found

    @cached_property
    def whole(self) -> Bools:
        """Which columns (target last) hold whole numbers only."""
        return np.array([bool((values == np.round(values)).all()) for _, values in self.columns])

    @cached_property
    def far(self) -> list[int]:
        """Columns (target last) with a least or largest number that nobody measures."""
        parts = [self.data.X] if self.data.y is None else [self.data.X, self.data.y[:, None]]
        ends = np.hstack([_ends(part) for part in parts])
        found = ~(np.abs(ends) <= LARGEST) | np.isin(ends, STAND_INS)
        return [int(j) for j in np.flatnonzero(found.any(axis=0))]

    @cached_property
    def distinct(self) -> Indices:
        """Distinct values of every column (target last)."""
        return np.array([len(np.unique(values)) for _, values in self.columns])

    @cached_property
    def continuous(self) -> bool:
        """Whether some column has hardly a value twice, so that equal rows are copies."""
        return bool((self.distinct[: self.data.n_features] > CONTINUOUS * len(self.data.X)).any())

    @cached_property
    def table(self) -> Floats:
        """Features and target beside each other."""
        return np.column_stack([values for _, values in self.columns])

    @property
    def has_classes(self) -> bool:
        """Whether the target looks like classes."""
        y, n_values = self.data.y, self.distinct[-1]
        if y is None or not 2 <= n_values <= MOST_CLASSES or not self.whole[-1]:
            return False
        coded = n_values == 2 or np.ptp(y) == n_values - 1
        return bool(coded and len(self.data.X) >= 5 * n_values)


def _ends(table: Floats) -> Floats:
    """Least and largest numbers of every column, (2, d); 0 without rows."""
    (n, d), wide = table.shape, max(1, NUMBERS_AT_ONCE // max(table.shape[1], 1))
    if n > wide and table.flags.c_contiguous:
        # Several rows beside each other, so that comparisons have long stretches to run along.
        whole, rest = table[: n // wide * wide].reshape(-1, wide * d), table[n // wide * wide :]
        both = [[f(whole, axis=0).reshape(wide, d), rest] for f in (np.min, np.max)]
        return np.array([f(np.vstack(part), axis=0) for f, part in zip((np.min, np.max), both)])
    return np.array([table.min(axis=0), table.max(axis=0)]) if n else np.zeros((2, d))


Check = Callable[[Looked], Iterator[Finding]]


def _warning(site: str | None, fact: str, remedy: str, columns: Sequence[int] = ()) -> Finding:
    return Finding("warning", site, fact, remedy, columns=tuple(map(int, columns)))


# ------------------------------------------------------------------ values


def stand_ins(look: Looked) -> Iterator[Finding]:
    """Numbers such as -999 or 1e300 that stand for something else."""
    data = look.data
    for j in look.far:
        word, values = look.columns[j]
        odd = np.abs(values) > LARGEST
        if odd.any():
            remedy = "correct or drop them"
            yield from _by_site(data, odd, j, word, "beyond any measurement", remedy)
        fine = values[~odd] if odd.any() else values
        # What is far from all others is the least or the largest.
        ends = {float(fine.min()), float(fine.max())} if len(fine) else set()
        for value in sorted(ends.intersection(STAND_INS)):
            here = values == value
            rest = values[~here & ~odd]
            if len(rest) < 2:
                continue
            width = max(float(np.ptp(rest)), abs(value) * 1e-6)
            away = min(abs(value - rest.min()), abs(value - rest.max()))
            if (value < rest.min() or value > rest.max()) and away > width:
                why = f"{value:g}, far from all others"
                yield from _by_site(data, here, j, word, why, "if it stands for missing, drop them")


def _by_site(
    data: Federation, where: Bools, j: int, word: str, what: str, remedy: str
) -> Iterator[Finding]:
    counts = np.bincount(data.owner[where], minlength=data.n_clients)
    for k in np.flatnonzero(counts):
        fact = f"{word} has {counts[k]} of {data.sizes[k]} values {what}"
        yield _warning(data.names[k], fact, remedy, [j])


def other_units(look: Looked) -> Iterator[Finding]:
    """A site whose scale is a multiple of the others' in a column."""
    data = look.data
    for j, (word, values) in enumerate(look.columns):
        far, away = far_scales(*site_scales(data, values), data.sizes)
        for k in np.flatnonzero(far):
            fact = f"the scale of {word} is {np.exp(away[k]):.3g} times that of the other sites"
            yield _warning(data.names[k], fact, "see whether it is in other units there", [j])


def far_scales(spread: Floats, size: Floats, rows: Indices | Floats) -> tuple[Bools, Floats]:
    """Sites whose standard deviation and root mean square are those of other units, and logs away.

    Nobody's are where too few sites have enough rows to be compared.
    """
    usable = (rows >= ROWS_FOR_SCALE) & (spread > ROUNDING * size) & (size > 0)
    if usable.sum() < SITES_FOR_SCALE:
        return np.zeros(len(spread), dtype=bool), np.zeros(len(spread))
    away, also = _logs_away(spread, usable), _logs_away(size, usable)
    typical = max(1.4826 * float(np.median(np.abs(away[usable]))), 0.05)
    far = np.abs(away) > max(np.log(OTHER_UNITS), FAR_IN_SPREADS * typical)
    far &= (np.abs(also) > np.log(OTHER_UNITS) / 2) & (away * also > 0)
    return far, away


def _logs_away(scale: Floats, usable: Bools) -> Floats:
    """Logarithms of scales beside their median; 0 where a site has none."""
    logs = np.log(np.where(usable, scale, 1.0))
    return np.where(usable, logs - np.median(logs[usable]), 0.0)


def site_scales(data: Federation, values: Floats) -> tuple[Floats, Floats]:
    """Standard deviation and root mean square of a column at every site."""
    rows = np.maximum(data.sizes, 1)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = np.bincount(data.owner, values, minlength=data.n_clients) / rows
        square = np.bincount(data.owner, values**2, minlength=data.n_clients) / rows
        centred = (values - mean[data.owner]) ** 2
        spread = np.bincount(data.owner, centred, minlength=data.n_clients) / rows
    return np.sqrt(np.nan_to_num(spread)), np.sqrt(np.nan_to_num(square))


# ------------------------------------------------------------------ columns and rows


def target_among_features(look: Looked) -> Iterator[Finding]:
    """A column that is the target, or a multiple of it."""
    data = look.data
    if data.y is None or len(data.X) < 5:
        return
    some = slice(None, None, max(1, len(data.X) // ROWS_AT_FIRST))
    # What is the target in all rows is nearly so in some, or does not vary there.
    maybe = ~(_likeness(data.X[some], data.y[some]) < NEARLY_TARGET)
    for j in map(int, np.flatnonzero(maybe)):
        same = _likeness(data.X[:, [j]], data.y)[0] > SAME_AS_TARGET
        if same and look.distinct[-1] >= 3:
            fact = f"column {data.feature_names[j]!r} tells the target exactly (R^2 of 1)"
            yield _warning(None, fact, "drop it: it is the target in other words", [j])


def _likeness(X: Floats, y: Floats) -> Floats:
    """Squared correlation of every column with the target; NaN where one does not vary."""
    columns, target = X - X.mean(axis=0), y - y.mean()
    size = np.einsum("nj,nj->j", columns, columns) * float(target @ target)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray((target @ columns) ** 2 / size)


def copied_rows(look: Looked) -> Iterator[Finding]:
    """Rows that a site has twice."""
    data = look.data
    if not look.continuous:
        return
    tagged = np.column_stack([look.table, data.owner])
    _, first = np.unique(tagged, axis=0, return_index=True)
    copies = np.bincount(data.owner, minlength=data.n_clients)
    copies = copies - np.bincount(data.owner[first], minlength=data.n_clients)
    for k in np.flatnonzero((copies > COPIES * data.sizes) & (copies > 1)):
        fact = f"{copies[k]} of {data.sizes[k]} rows are copies of others"
        yield _warning(data.names[k], fact, "keep each row once, or say why they repeat")


def copied_tables(look: Looked) -> Iterator[Finding]:
    """Two sites that hold the same rows."""
    data = look.data
    if not look.continuous or data.n_clients < 2:
        return
    _, code = np.unique(look.table, axis=0, return_inverse=True)
    pairs = np.unique(np.column_stack([code.ravel(), data.owner]), axis=0)
    shared = np.flatnonzero(np.bincount(pairs[:, 0]) > 1)
    twice = pairs[np.isin(pairs[:, 0], shared)]
    counts = np.bincount(twice[:, 1], minlength=data.n_clients)
    alike = np.flatnonzero(counts > 0.5 * np.maximum(data.sizes, 1))
    if len(alike) > 1:
        names = listed([data.names[k] for k in alike])
        fact = f"sites {names} hold the same rows, or most of them"
        yield _warning(None, fact, "leave all but one of them out, or find out whose rows they are")


def identifiers(look: Looked) -> Iterator[Finding]:
    """A column that numbers the rows."""
    data, n = look.data, len(look.data.X)
    # Dates may have a day for every row, and tell much.
    coded = () if data.encoding is None else data.encoding.columns
    dates = {column.name for column in coded if column.kind == "date"}
    for j, name in enumerate(data.feature_names):
        values = data.X[:, j]
        if n < 20 or not look.whole[j] or look.distinct[j] < 0.9 * n or name in dates:
            continue
        consecutive = look.distinct[j] == n and np.ptp(values) == n - 1
        if consecutive or name.strip().lower() in ID_NAMES:
            fact = f"column {name!r} numbers the rows"
            yield _warning(None, fact, "drop it: an index or identifier explains nothing", [j])


def collinear(look: Looked) -> Iterator[Finding]:
    """Columns that are combinations of others."""
    data = look.data
    centred = data.X - data.X.mean(axis=0)
    size = np.sqrt((centred**2).sum(axis=0))
    varies = np.flatnonzero(size > 0)
    if len(varies) < 2 or len(data.X) <= len(varies):
        return
    unit = centred[:, varies] / size[varies]
    values, vectors = np.linalg.eigh(unit.T @ unit)
    for k in np.flatnonzero(values < COLLINEAR):
        who = varies[np.abs(vectors[:, k]) > 0.1]
        names = listed([data.feature_names[j] for j in who])
        fact = f"columns depend on each other: {names}"
        yield _warning(None, fact, "drop one of them", who)


def constant_everywhere(look: Looked) -> Iterator[Finding]:
    """Columns with one value."""
    for j, name in enumerate(look.data.feature_names):
        if look.distinct[j] == 1 and len(look.data.X) > 1:
            fact = f"column {name!r} is constant"
            yield _warning(None, fact, "drop it: it can tell nothing", [j])


def constant_at_sites(look: Looked) -> Iterator[Finding]:
    """Columns that do not vary within some or all sites, but between them."""
    data = look.data
    several = np.flatnonzero(data.sizes > 1)
    at_some: dict[str, list[str]] = {}
    at_all: list[str] = []
    for j, name in enumerate(data.feature_names):
        if look.distinct[j] < 2 or not len(several):
            continue
        spread, _ = site_scales(data, data.X[:, j] - data.X[:, j].mean())
        flat = several[spread[several] <= 1e-14 * max(float(np.abs(data.X[:, j]).max()), 1e-300)]
        if len(flat) == len(several):
            at_all.append(name)
        elif len(flat):
            at_some[name] = [data.names[k] for k in flat]
    for fact in constant_at_all(at_all):
        yield _warning(None, fact, "a mixed model can use it; a model for each site cannot")
    for fact in constant_at_some(at_some):
        yield _warning(None, fact, "its effect is not determined there alone")


def off_centre(look: Looked) -> Iterator[Finding]:
    """Columns that vary by next to nothing beside their mean."""
    for j in look.data.off_centre:
        fact = f"column {look.data.feature_names[j]!r} hardly varies beside its mean"
        yield _warning(None, fact, "subtract one number near its mean at all sites", [j])


def lonely_levels(look: Looked) -> Iterator[Finding]:
    """Levels of a coded column that one site alone has."""
    data = look.data
    if data.n_clients < 3:
        return
    for j, name in enumerate(data.feature_names):
        if not look.whole[j] or not 2 <= look.distinct[j] <= MOST_LEVELS:
            continue
        levels, code = np.unique(data.X[:, j], return_inverse=True)
        present = np.zeros((len(levels), data.n_clients), dtype=bool)
        present[code, data.owner] = True
        for k in np.flatnonzero(present.sum(axis=1) == 1):
            site = data.names[int(np.argmax(present[k]))]
            fact = f"column {name!r} has the value {levels[k]:g} at this site only"
            yield _warning(site, fact, "its effect cannot be told from the site's; merge levels")


# ------------------------------------------------------------------ target


def constant_target(look: Looked) -> Iterator[Finding]:
    """A target that does not vary, anywhere or at some sites."""
    data = look.data
    if data.y is None or len(data.X) < 2:
        return
    if look.distinct[-1] == 1:
        target = [data.n_features]
        yield _warning(None, "the target has one value only", "there is nothing to predict", target)
        return
    if look.has_classes:
        return
    low = np.full(data.n_clients, np.inf)
    high = np.full(data.n_clients, -np.inf)
    np.minimum.at(low, data.owner, data.y)
    np.maximum.at(high, data.owner, data.y)
    flat = np.flatnonzero((data.sizes > 2) & (low == high))
    for k in flat:
        fact = f"the target is {low[k]:g} in all {data.sizes[k]} rows"
        yield _warning(data.names[k], fact, "see whether it was recorded there")


def one_class(look: Looked) -> Iterator[Finding]:
    """Sites that know one class only."""
    data = look.data
    if not look.has_classes or data.y is None:
        return
    counts = _class_counts(data)
    lonely = np.flatnonzero(((counts > 0).sum(axis=1) == 1) & (data.sizes > 1))
    if len(lonely):
        shown = listed([data.names[k] for k in lonely], 3)
        fact = f"{len(lonely)} of {data.n_clients} sites have one class only: {shown}"
        yield _warning(None, fact, "a model of such a site alone is none; share")


def rare_classes(look: Looked) -> Iterator[Finding]:
    """Classes that hardly occur."""
    data = look.data
    if not look.has_classes or data.y is None or len(data.X) < ROWS_FOR_CLASSES:
        return
    values, counts = np.unique(data.y, return_counts=True)
    for value, count in zip(values, counts):
        if count < RARE * len(data.y):
            fact = f"class {value:g} has {count} of {len(data.y)} rows"
            remedy = "errors hide it: look at log scores, or at that class alone"
            yield _warning(None, fact, remedy, [data.n_features])


def _class_counts(data: Federation) -> Floats:
    assert data.y is not None
    classes, code = np.unique(data.y, return_inverse=True)
    counts = np.zeros((data.n_clients, len(classes)))
    np.add.at(counts, (data.owner, code), 1.0)
    return counts


# ------------------------------------------------------------------ sites


def one_site(look: Looked) -> Iterator[Finding]:
    """A federation of one."""
    if look.data.n_clients == 1:
        fact = "there is one site only"
        yield _warning(None, fact, "name the site of each row (groups=, or the column of sites)")


def site_per_row(look: Looked) -> Iterator[Finding]:
    """Nearly as many sites as rows."""
    data = look.data
    if data.n_clients > 10 and len(data.X) < 1.5 * data.n_clients:
        fact = f"{data.n_clients} sites have {len(data.X)} rows"
        yield _warning(None, fact, "see whether the column of sites is an identifier of rows")


def empty_sites(look: Looked) -> Iterator[Finding]:
    """Sites without rows."""
    for k in np.flatnonzero(look.data.sizes == 0):
        yield _warning(look.data.names[k], "has no rows", "it takes no part; leave it out")


def few_rows(look: Looked) -> Iterator[Finding]:
    """Sites with no more rows than columns."""
    data = look.data
    tiny = np.flatnonzero((data.sizes > 0) & (data.sizes <= data.n_features))
    if len(tiny):
        shown = listed([data.names[k] for k in tiny], 3)
        fact = f"{len(tiny)} of {data.n_clients} sites have no more rows than columns: {shown}"
        yield _warning(None, fact, "a fit there alone is not determined; share statistics")


def more_columns_than_rows(look: Looked) -> Iterator[Finding]:
    """More columns than rows altogether."""
    data = look.data
    if len(data.X) <= data.n_features:
        fact = f"{data.n_features} columns, {len(data.X)} rows at all sites together"
        yield _warning(None, fact, "leave columns out, or combine them")


def more_groups_than_sites(look: Looked) -> Iterator[Finding]:
    """More kinds of sites asked for than there are sites."""
    filled = int((look.data.sizes > 0).sum())
    if look.n_groups is not None and look.n_groups > filled:
        fact = f"{look.n_groups} groups of sites are asked for; there are {filled} sites with rows"
        yield _warning(None, fact, "ask for fewer")


def by_degrees(look: Looked) -> Iterator[Finding]:
    """Sites whose level differs beyond chance."""
    data = look.data
    if data.y is None or look.has_classes or data.n_clients < 3 or len(data.X) < 3 * data.n_clients:
        return
    residual = data.y - _pooled_fit(data)
    rows = np.maximum(data.sizes, 1)
    mean = np.bincount(data.owner, residual, minlength=data.n_clients) / rows
    within = float(((residual - mean[data.owner]) ** 2).sum()) / (len(residual) - data.n_clients)
    among = float((data.sizes * mean**2).sum()) / (data.n_clients - 1)
    if within <= 0:
        return
    from scipy.stats import f

    chance = float(f.sf(among / within, data.n_clients - 1, len(residual) - data.n_clients))
    per_site = len(residual) / data.n_clients
    between = max((among - within) / per_site, 0.0)
    share = between / (between + within)
    if chance < SURE and share > LEAST_BETWEEN:
        fact = f"sites differ: {share:.0%} of what columns leave open lies between them"
        remedy = "one model for all misses it; take MixedModel or Best (fit auto)"
        yield _warning(None, fact, remedy)


def _pooled_fit(data: Federation) -> Floats:
    coef, _ = solve(packed_statistics(data.pooled(), True).T)
    return np.asarray(data.X @ coef[0, :-1] + coef[0, -1])


CHECKS: dict[str, Check] = {
    "FK003": stand_ins,
    "FK004": other_units,
    "FK005": target_among_features,
    "FK006": copied_rows,
    "FK007": copied_tables,
    "FK008": identifiers,
    "FK009": collinear,
    "FK010": constant_everywhere,
    "FK011": constant_at_sites,
    "FK012": off_centre,
    "FK013": constant_target,
    "FK014": one_site,
    "FK015": site_per_row,
    "FK016": empty_sites,
    "FK017": few_rows,
    "FK018": more_columns_than_rows,
    "FK019": one_class,
    "FK020": rare_classes,
    "FK021": more_groups_than_sites,
    "FK022": lonely_levels,
    "FK023": by_degrees,
}
"""Checks by code; FK001 (missing) and FK002 (infinite values) come before them."""

# Quick and surely wrong: what estimators warn of by themselves, up to so many numbers; and a target
# that does not vary anywhere.
AT_FIT = ("FK003", "FK005")
CONSTANT_TARGET = "FK013"
# And of tables from files, whose first column is often the number of the row, and whose column of
# sites may be another than was meant.
OF_FILES = (*AT_FIT, "FK008", "FK014", "FK015")
# What a site that holds its own rows can see in them alone, before any round.
AT_SITES = (
    *("FK003", "FK005", "FK006", "FK008", "FK009", "FK010"),
    *("FK012", "FK013", "FK017", "FK020"),
)
NUMBERS_AT_FIT = 2_000_000


@dataclass(frozen=True)
class Findings(Sequence[Finding]):
    """What checks found; prints as a table."""

    found: tuple[Finding, ...]

    def __getitem__(self, place: Any) -> Any:
        return self.found[place]

    def __len__(self) -> int:
        return len(self.found)

    @property
    def codes(self) -> list[str]:
        """Codes of the findings, each once, in order."""
        return list(dict.fromkeys(finding.code for finding in self.found))

    def table(self) -> Table:
        """A row a finding."""
        columns = ("code", "level", "site", "fact", "remedy")
        rows = [[getattr(finding, c) or "" for finding in self.found] for c in columns]
        return Table(dict(zip(columns, rows)), "Findings")

    def __str__(self) -> str:
        return str(self.table()) if self.found else "nothing to complain about"

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def checks(
    X: Any,
    y: Any = None,
    groups: Any = None,
    *,
    ignore: Collection[str] = (),
    n_groups: int | None = None,
) -> Findings:
    """What deserves a look in the data, all at once.

    Parameters
    ----------
    X, y, groups : rows, target and site of each row, or a Federation
        Rows with missing or infinite values are told, and left out of the other checks.
    ignore : codes
        Such as ["FK012"].
    n_groups : int or None
        Kinds of sites that will be asked for.
    """
    unknown = sorted(set(ignore) - {"FK001", "FK002", *CHECKS})
    if unknown:
        raise ValueError(f"there is no check {listed(unknown)}")
    if isinstance(X, Federation):
        return _findings([], X, ignore, n_groups)
    table, names = numeric_table(X)
    target = None if y is None else _numbers(y)
    return _findings(*_looked_at(table, names, target, groups), ignore, n_groups)


def _findings(
    errors: list[Finding], data: Federation | None, ignore: Collection[str], n_groups: int | None
) -> Findings:
    found = [finding for finding in errors if finding.code not in ignore]
    if data is not None and len(data.X):
        found += found_by(data, [code for code in CHECKS if code not in ignore], n_groups)
    return Findings(tuple(found))


def checks_of_table(
    frame: Any,
    client: str = "site",
    target: str | None = None,
    features: Sequence[str] | None = None,
    ignore: Collection[str] = (),
) -> Findings:
    """Checks of a pandas, polars or pyarrow table with a column of site names.

    Words and dates become numbers as in a fit.
    """
    import narwhals.stable.v1 as nw

    table = nw.from_native(with_text_names(frame), eager_only=True)
    chosen = chosen_columns(table.columns, client, target, features)
    words = () if target is None else classes_of(table[target], target)
    encoding = Encoding.learn(table, chosen, words)
    y = None if target is None else target_column(table[target], target, encoding.classes)
    rows, names = encoding.matrix(table), encoding.feature_names
    found = _findings(*_looked_at(rows, names, y, table[client].to_list()), ignore, None)
    return Findings(tuple(_named(finding, target) for finding in found))


def _named(finding: Finding, target: str | None) -> Finding:
    """A finding that calls the target by its name."""
    return replace(finding, fact=finding.fact.replace("target 'y'", f"target {target!r}"))


def found_by(data: Federation, codes: Sequence[str], n_groups: int | None = None) -> list[Finding]:
    """Findings of some checks; only one of them sees numbers beyond any measurement."""
    look = Looked(data, n_groups)
    calm = look if not look.far else Looked(_measurable(data), n_groups)
    found = []
    for code in codes:
        check = CHECKS[code]
        if check is not stand_ins and not len(calm.data.X):
            continue
        found += [replace(one, code=code) for one in check(look if check is stand_ins else calm)]
    return found


def _measurable(data: Federation) -> Federation:
    """The rows without numbers beyond any measurement."""
    fine = np.asarray((np.abs(data.X) <= LARGEST).all(axis=1))
    if data.y is not None:
        fine = fine & (np.abs(data.y) <= LARGEST)
    return data if fine.all() else rows_where(data, fine)


def findings_at_fit(data: Federation, uses_target: bool = True) -> list[Finding]:
    """What an estimator warns of before it fits; nothing where looking would take long."""
    if data.X.size > NUMBERS_AT_FIT or not len(data.X):
        return []
    y = data.y if uses_target else None
    constant = y is not None and len(y) > 1 and y.min() == y.max()
    return found_by(data, [*AT_FIT, CONSTANT_TARGET] if constant else AT_FIT)


def findings_of_table(data: Federation) -> list[Finding]:
    """What is told of a table from a file before it is fitted."""
    return found_by(data, OF_FILES) if len(data.X) and data.X.size <= NUMBERS_AT_FIT else []


def _looked_at(
    table: Floats, names: tuple[str, ...], target: Floats | None, groups: Any
) -> tuple[list[Finding], Federation | None]:
    """Errors of single values, and the federation of the rows that have none."""
    labels = site_labels(groups) if groups is not None else np.full(len(table), "site")
    sites, owner = name_codes(labels)
    columns = [(f"column {name!r}", table[:, j]) for j, name in enumerate(names)]
    columns += [] if target is None else [("target 'y'", target)]
    errors = list(value_errors(columns, owner, sites, "before fitting", TOLD_APART))
    fine = np.isfinite(table).all(axis=1)
    fine &= True if target is None else np.isfinite(target)
    if not fine.any():
        return errors, None
    kept = Federation.from_groups(
        table[fine],
        labels[fine],
        None if target is None else target[fine],
        names if names != plain_names(table.shape[1]) else None,
    )
    return errors, kept


def _numbers(y: Any) -> Floats:
    """The target as numbers; words become codes."""
    values: Array = np.asarray(y)
    if values.dtype.kind in "fiub":
        return values.astype(np.float64)
    return np.unique(values.astype(str), return_inverse=True)[1].astype(np.float64)
