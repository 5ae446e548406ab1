"""A round of aggregate facts before the first fit: which checks fire at which site.

Every site looks at its own rows with the library's checks (`fedkin.checks`). What travels is which
code fires in which column, as zeros and ones, and how many rows there are; how many values are
concerned, and which, stays in the site's log. A second question brings the scales of columns, to a
tenth of their logarithm, by which a site in other units is seen among the others.

| word | meaning |
|---|---|
| code | FK003 and so on, in the order of `CODES` |
| place | the columns in their order, then the target, then the table as a whole |
| scale | 0 standard deviation, 1 root mean square, of every column and the target |

What only rows side by side can tell stays untold: the same rows at two sites (FK007), levels that
one site alone has (FK022), sites whose level differs (FK023).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedkin.arrays import Array, Floats, Indices
from fedkin.checks import AT_SITES, far_scales, found_by, site_scales
from fedkin.federation import Federation
from fedkin.frames import Finding
from fedkin.protocol import (
    Algorithm,
    Ask,
    Field,
    Program,
    Result,
    Roster,
    Step,
    over_roster,
)
from fedkin.settings import Flag, Settings, setting

# A column that is constant at a site may vary between sites.
_AS_TOLD = {"FK010": "FK011"}
CODES = tuple(_AS_TOLD.get(code, code) for code in AT_SITES)
# Found from what all sites told.
OTHER_UNITS, TOO_MANY_COLUMNS = "FK004", "FK018"
# Digits of a logarithm of a scale: enough to tell a unit, too few to tell a patient.
LOG_DIGITS = 1
# What stands for the target among the places where a code fires.
TARGET = -1
# Logarithm of the scale of a column without any.
NO_SCALE = -1000.0


class SiteChecksSettings(Settings):
    """Which of the two questions is asked."""

    scales: bool = setting(False, Flag())


@dataclass(frozen=True, kw_only=True, eq=False)
class SiteChecksResult(Result):
    """What fires where (m, codes, places) and rows (m,); or logarithms of scales (m, 2, places)."""

    heard: Array
    found: Indices | None = None
    rows: Floats | None = None
    total: Floats | None = None
    scales: Floats | None = None

    def account(self, about: Any) -> list[str]:
        """What left the sites."""
        if self.scales is not None:
            return ["Each site sent the scale of every column, rounded."]
        return ["Each site sent which checks fire in which columns, and its number of rows."]


FOUND = Field(("C", "P"), "whether a check fires", "int64", 1.0, least=0.0, reveals="count")
ROWS = Field((), "rows", least=0.0, reveals="count")
SCALES = Field((2, "T"), "logarithms of the scales of columns, rounded", reveals="sums")


# ------------------------------------------------------------------ client functions


def site_findings(clients: Federation) -> list[Finding]:
    """What the checks say of the rows of one site, with codes as they are told to others."""
    found = found_by(clients, AT_SITES)
    return [replace(one, code=_AS_TOLD.get(one.code, one.code)) for one in found]


def look(clients, cache, settings, common, personal, memory, keys):
    """Which codes fire in which places at every client."""
    alone = [clients.take(np.array([k])) for k in range(len(clients))]
    found = [_flags(client) for client in alone]
    return {"rows": clients.sizes.astype(float), "found": np.stack(found)}, memory


def _flags(client: Federation) -> Indices:
    """Zeros and ones by code and place."""
    table = client.n_features + 1
    flags = np.zeros((len(CODES), table + 1), dtype=np.int64)
    for finding in site_findings(client) if len(client.X) else ():
        flags[CODES.index(finding.code), list(finding.columns) or [table]] = 1
    return flags


def scales(clients, cache, settings, common, personal, memory, keys):
    """Logarithms of standard deviation and root mean square of every column, rounded."""
    columns = [*clients.X.T, *([] if clients.y is None else [clients.y])]
    found = [site_scales(clients, values) for values in columns]
    both = np.array(found).reshape(len(columns), 2, len(clients)).transpose(2, 1, 0)
    there = both > 0
    logs = np.round(np.log(np.where(there, both, 1.0)), LOG_DIGITS)
    return {"scales": np.where(there, logs, NO_SCALE)}, memory


# ------------------------------------------------------------------ server program


def program(roster: Roster, settings: SiteChecksSettings) -> Program:
    """Ask what fires, or for the scales."""
    m = len(roster)
    if settings.scales:
        replies = yield Ask("scales")
        told = over_roster(replies["scales"], replies.clients, m, NO_SCALE)
        return SiteChecksResult(heard=replies.clients, scales=told)
    replies = yield Ask("look")
    found = over_roster(replies["found"], replies.clients, m, 0)
    rows = over_roster(replies["rows"], replies.clients, m, 0.0)
    return SiteChecksResult(heard=replies.clients, found=found, rows=rows, total=rows.sum())


SITE_CHECKS = Algorithm(
    name="site_checks",
    steps={
        "look": Step(look, {"rows": ROWS, "found": FOUND}),
        "scales": Step(scales, {"scales": SCALES}),
    },
    program=program,
    settings=SiteChecksSettings,
    result=SiteChecksResult,
)


# ------------------------------------------------------------------ what it comes to


@dataclass(frozen=True)
class Fired:
    """A code that fires at a site (None: all sites together) in some columns, or in the target."""

    site: str | None
    code: str
    places: tuple[int, ...]


def all_fired(
    names: Sequence[str], facts: SiteChecksResult | None, sizes: SiteChecksResult | None
) -> list[Fired]:
    """What sites told, and what they told together: other units, more columns than rows."""
    if facts is None or facts.found is None or facts.rows is None:
        return []
    target = facts.found.shape[2] - 2
    fired = [
        Fired(names[k], code, _places(facts.found[k, c, :-1], target))
        for k in facts.heard
        for c, code in enumerate(CODES)
        if facts.found[k, c].any()
    ]
    if sizes is not None and sizes.scales is not None:
        fired += _other_units(names, sizes.scales, facts.rows, target)
    if facts.rows.sum() <= target:
        fired.append(Fired(None, TOO_MANY_COLUMNS, ()))
    return fired


def _places(flags: Array, target: int) -> tuple[int, ...]:
    return tuple(TARGET if j == target else int(j) for j in np.flatnonzero(flags))


def _other_units(names: Sequence[str], scales: Floats, rows: Floats, target: int) -> list[Fired]:
    """Sites whose scale is a multiple of the others', by column."""
    spread, size = np.where(scales > NO_SCALE, np.exp(scales), 0.0).transpose(1, 2, 0)
    where = [far_scales(s, r, rows)[0] for s, r in zip(spread, size)]
    far = np.array(where).reshape(len(spread), len(names))
    return [
        Fired(names[int(k)], OTHER_UNITS, _places(far[:, k], target))
        for k in np.flatnonzero(far.any(axis=0))
    ]
