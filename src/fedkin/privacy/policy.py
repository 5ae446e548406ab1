"""A site's policy: what it takes part in, decided by the site and written in its own file.

    [allow]                       # what is not listed here is refused; a missing list allows all
    methods = ["fmlr", "standardizer"]
    steps = ["fmlr.statistics", "standardizer.*"]
    fields = ["statistics", "centre", "rows", "sums", "squares"]
    coordinators = ["admin@fedkin.org"]
    trusted = ["fgpr.slopes", "fgpr.totals"]  # could single rows out: none by default

    [limits]
    rounds = 500
    runs_per_day = 20

    [mode]
    dry_run = false               # true: what would be sent is written down here, nothing leaves
    approve = false               # true: an operator confirms the first run of each method

    [disclosure]                  # see fedkin.privacy.disclosure.DisclosureRules
    nfilter_subset = 10

An unknown key is an error. Which rule refused what is in the ledger.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from fedkin.privacy.disclosure import DEFAULT_RULES, DisclosureRules
from fedkin.registry import METHODS

Names = tuple[str, ...] | None
SECTIONS = {
    "allow": ("methods", "steps", "fields", "coordinators", "trusted"),
    "limits": ("rounds", "runs_per_day"),
    "mode": ("dry_run", "approve"),
    "disclosure": tuple(rule.name for rule in fields(DisclosureRules)),
}


class PolicyError(ValueError):
    """The policy file cannot be understood; nothing is answered before it can."""


@dataclass(frozen=True)
class SitePolicy:
    """What a site allows; the default allows every method under the default disclosure rules."""

    methods: Names = None
    steps: Names = None
    fields: Names = None
    coordinators: Names = None
    trusted: Names = None
    rounds: int | None = None
    runs_per_day: int | None = None
    dry_run: bool = False
    approve: bool = False
    disclosure: DisclosureRules | None = field(default=DEFAULT_RULES)

    @classmethod
    def read(cls, path: str | Path) -> SitePolicy:
        """The policy in a TOML file; what is wrong with it is said with its key."""
        try:
            told = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise PolicyError(f"{path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise PolicyError(f"{path} is not TOML: {error}") from error
        try:
            return cls.from_mapping(told)
        except ValueError as error:
            raise PolicyError(f"{path}: {error}") from error

    @classmethod
    def from_mapping(cls, told: Mapping[str, Any]) -> SitePolicy:
        """The policy by sections and keys; unknown ones are errors."""
        _known("section", told, SECTIONS)
        for section, content in told.items():
            if not isinstance(content, Mapping):
                raise PolicyError(f"[{section}] must be a section")
            _known(f"key of [{section}]", content, SECTIONS[section])
        found: dict[str, Any] = {}
        readers: dict[str, Callable[[str, Any], Any]] = {
            "allow": _names,
            "limits": _whole,
            "mode": _flag,
        }
        for section, reader in readers.items():
            for name, value in told.get(section, {}).items():
                found[name] = reader(name, value)
        return cls(**found, disclosure=DisclosureRules.from_mapping(told.get("disclosure", {})))

    def refuses_run(self, method: str, coordinator: str | None, runs_today: int) -> str | None:
        """Why a new run of a method is refused, for the site's own log; None if it is not."""
        if self.methods is not None and method not in self.methods:
            return f"method {method} is not among allow.methods"
        if self.coordinators is not None and coordinator not in self.coordinators:
            return f"{coordinator} is not among allow.coordinators"
        if self.runs_per_day is not None and runs_today >= self.runs_per_day:
            return f"{runs_today} runs in 24 hours, limits.runs_per_day is {self.runs_per_day}"
        return None

    def refuses_question(
        self, method: str, step: str, sent: Sequence[str], number: int
    ) -> str | None:
        """Why a question is refused, for the site's own log; None if it is not."""
        if self.steps is not None and not {f"{method}.{step}", f"{method}.*"} & set(self.steps):
            return f"step {method}.{step} is not among allow.steps"
        missing = [] if self.fields is None else [f for f in sent if f not in self.fields]
        if missing:
            return f"field {missing[0]} is not among allow.fields"
        if self.rounds is not None and number > self.rounds:
            return f"round {number}, limits.rounds is {self.rounds}"
        return None

    def trusts(self, method: str, step: str) -> bool:
        """Whether the server is trusted with a question that could single rows out."""
        return bool({f"{method}.{step}", f"{method}.*"} & set(self.trusted or ()))


def _known(what: str, told: Mapping[str, Any], known: Sequence[str] | Mapping[str, Any]) -> None:
    unknown = [name for name in told if name not in known]
    if unknown:
        raise PolicyError(f"there is no {what} {unknown[0]!r}; there are {', '.join(known)}")


def _names(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise PolicyError(f"{name} must be a list of names, not {value!r}")
    if name in ("methods", "steps", "trusted"):
        known = [method.name for method in METHODS]
        strange = [one for one in value if one.partition(".")[0] not in known]
        if strange:
            raise PolicyError(
                f"{name}: there is no method {strange[0]!r}; there are {', '.join(known)}"
            )
    return tuple(value)


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise PolicyError(f"{name} must be a whole number from 0 on, not {value!r}")
    return value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise PolicyError(f"{name} must be true or false, not {value!r}")
    return value
