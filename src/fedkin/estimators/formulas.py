"""Formulas as readers of lme4 know them: "y ~ age * sex + (age | site)".

What stands outside the brackets is formulaic's business: encodings, interactions, splines. Inside,
before the bar, stand the columns whose coefficients differ between sites, behind it the column with
the sites' names; two bars mean that departures are uncorrelated.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedkin.arrays import Array, Floats
from fedkin.federation import Federation
from fedkin.frames import numeric_column, plain_names
from fedkin.names import canonical_names, listed, site_labels

RANDOM = re.compile(r"\+?\s*\(([^|()]*(?:\([^()]*\)[^|()]*)*)(\|\|?)([^|()]*)\)")
INTERCEPT = "Intercept"


@dataclass(frozen=True)
class ParsedFormula:
    """The parts of a formula, as text; `site` is the column with the sites' names."""

    fixed: str
    random: str
    site: str
    uncorrelated: bool

    @classmethod
    def of(cls, formula: str) -> ParsedFormula:
        """Take a formula apart."""
        if not isinstance(formula, str):
            raise ValueError(f"formula must be text such as 'y ~ x + (x | site)', not {formula!r}")
        found = RANDOM.findall(formula)
        if len(found) != 1 or "~" not in formula:
            raise ValueError(
                f"formula {formula!r} must have a target and one term for the sites, such as "
                "'y ~ x + (x | site)'"
            )
        random, bars, site = found[0]
        fixed = RANDOM.sub("", formula).strip()
        target, _, right = fixed.partition("~")
        right = right.strip().removeprefix("+").strip() or "1"
        return cls(f"{target.strip()} ~ {right}", random.strip() or "1", site.strip(), bars == "||")


@dataclass(frozen=True)
class Design:
    """How a table becomes features and a target: fixed at the fit, the same ever after."""

    parsed: ParsedFormula
    target: Any
    features: Any
    """Model specifications of formulaic."""
    columns: tuple[str, ...]
    beside: tuple[str, ...]
    random: tuple[str, ...]
    random_level: bool
    intercept: bool

    def rows(self, table: Any) -> Floats:
        """Features and the columns beside them, (n, d)."""
        frame = as_pandas(table)
        _known_levels(self.features, frame)
        matrix = _matrix(self.features, frame)
        own = [matrix[name].to_numpy(float) for name in self.columns]
        more = [_numbers(frame, name) for name in self.beside]
        return np.stack([*own, *more], axis=1) if own or more else np.zeros((len(frame), 0))

    def targets(self, table: Any) -> Floats:
        """The target, (n,)."""
        return np.asarray(_matrix(self.target, as_pandas(table)).iloc[:, 0].to_numpy(float))

    def sites(self, table: Any) -> Array | None:
        """Names of the rows' sites; None if the table has none."""
        frame = as_pandas(table)
        if self.parsed.site not in frame.columns:
            return None
        return canonical_names(site_labels(frame[self.parsed.site].to_numpy()))


def design_of(formula: str, table: Any, beside: Sequence[str]) -> tuple[Design, Federation]:
    """Read a formula against a table, whose categories all sites agree on."""
    from formulaic import model_matrix
    from formulaic.errors import FormulaicError

    parsed = ParsedFormula.of(formula)
    frame = as_pandas(table, parsed.site)
    if parsed.site not in frame.columns:
        raise ValueError(f"there is no column {parsed.site!r}; there are {listed(frame.columns)}")
    try:
        both = model_matrix(parsed.fixed, frame, na_action="ignore", context={})
        random = model_matrix(parsed.random, frame, na_action="ignore", context={})
    except (FormulaicError, NameError) as error:
        raise ValueError(f"formula {formula!r}: {error}") from None
    target, features = both.lhs, both.rhs
    if target.shape[1] != 1:
        raise ValueError(f"formula {formula!r}: the target must be one column of numbers")
    names = tuple(map(str, features.columns))
    own = tuple(map(str, random.columns))
    unknown = [name for name in own if name not in names]
    if unknown:
        raise ValueError(
            f"formula {formula!r}: {listed(unknown)} differ between sites, but are not among the "
            f"common columns {listed(names)}; add them"
        )
    columns = tuple(name for name in names if name != INTERCEPT)
    design = Design(
        parsed,
        target.model_spec,
        features.model_spec,
        columns,
        tuple(beside),
        tuple(name for name in own if name != INTERCEPT),
        INTERCEPT in own,
        INTERCEPT in names,
    )
    sites = frame[parsed.site].to_numpy()
    _levels_of_one_site(design.features, frame, sites)
    rows = design.rows(frame)
    y = np.asarray(target.iloc[:, 0].to_numpy(float))
    return design, Federation.from_groups(rows, sites, y, (*columns, *design.beside))


def as_pandas(table: Any, site: str = "site") -> Any:
    """A table of any kind, or a federation, as pandas has it."""
    import narwhals.stable.v1 as nw
    import pandas

    if isinstance(table, Federation):
        names = table.feature_names or plain_names(table.n_features)
        frame = pandas.DataFrame(table.X, columns=list(names))
        if table.y is not None:
            frame[table.target_name or "y"] = table.y
        frame[site] = np.array(table.names, dtype=object)[table.owner]
        return frame
    try:
        return nw.from_native(table, eager_only=True).to_pandas()
    except TypeError:
        raise ValueError(
            f"a formula needs a table with named columns, not {type(table).__name__}"
        ) from None


def _matrix(spec: Any, frame: Any) -> Any:
    from formulaic.errors import FormulaicError

    try:
        return spec.get_model_matrix(frame, context={})
    except FormulaicError as error:
        raise ValueError(
            f"the table lacks what the formula needs: {error} Its columns are "
            f"{listed(frame.columns)}"
        ) from None


def _numbers(frame: Any, name: str) -> Floats:
    import narwhals.stable.v1 as nw

    if name not in frame.columns:
        raise ValueError(f"there is no column {name!r}; the columns are {listed(frame.columns)}")
    return numeric_column(nw.from_native(frame, eager_only=True)[name], name)


def _categories(spec: Any) -> dict[str, list[Any]]:
    """Levels of every categorical variable of a specification."""
    found = {}
    for factor, (kind, state) in spec.encoder_state.items():
        if kind.value == "categorical" and "categories" in state:
            found[str(factor)] = list(state["categories"])
    return found


def _known_levels(spec: Any, frame: Any) -> None:
    """Complain about levels, and gaps, that a table of the fit did not have."""
    for name, levels in _categories(spec).items():
        if name not in frame.columns:
            continue
        values = frame[name]
        if values.isna().any():
            raise ValueError(
                f"column {name!r} has {int(values.isna().sum())} missing values; drop these rows "
                "or make missing a level of its own (NaN)"
            )
        strange = sorted({str(value) for value in values if value not in levels})
        if strange:
            raise ValueError(
                f"column {name!r} has {listed(strange)}; at the fit it had {listed(levels)}"
            )


def _levels_of_one_site(spec: Any, frame: Any, sites: Array) -> None:
    """Complain about levels that tell nothing but the site."""
    if len(set(sites)) < 2:
        return
    for name, levels in _categories(spec).items():
        if name not in frame.columns:
            continue
        for level in levels:
            having = sorted({str(site) for site in sites[(frame[name] == level).to_numpy()]})
            if len(having) == 1:
                raise ValueError(
                    f"level {level!r} of {name!r} is at site {having[0]!r} only: what it does "
                    "cannot be told from the site; merge it with another level or drop its rows"
                )
