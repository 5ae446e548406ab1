"""A job as a person writes it: method, settings, schema, seed and rules in one TOML file.

    method = "FMLR"               # or "auto": the way of sharing that left-out rows call for
    name = "pressure-1"           # of the run; a new one if it is left out
    features = ["age", "bmi"]     # columns, in the order all sites use them
    weights = "visits"            # column that says how much each row counts, if there is one
    seed = 0
    deadline = 60                 # seconds a site has for an answer

    benefit = true                # ask whether joining helps each site, by rows left out

    [settings]
    n_components = 2

    [schema.age]                  # what sites check before the first round (engines.schema)
    unit = "years"

    [checks]                      # of the library, before the first round (engines.job_checks)
    stop = ["FK003"]

    [rules]
    quorum = 0.5
    on_loss = "wait"

An unknown key is an error.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from fedkin.engines.driver import Rules
from fedkin.engines.job_checks import JobChecks
from fedkin.engines.schema import JobSchema
from fedkin.engines.site import check_run_name
from fedkin.registry import ESTIMATORS

# The method of a job that asks which way of sharing fits, and then fits it (`Best`).
AUTO = "auto"
KEYS = (
    *("method", "name", "features", "seed", "deadline", "benefit", "weights"),
    *("settings", "schema", "checks", "rules"),
)


@dataclass(frozen=True)
class JobFile:
    """What a job file says, checked."""

    method: str
    name: str | None = None
    features: tuple[str, ...] | None = None
    seed: int | None = None
    deadline: float = 60.0
    settings: Mapping[str, Any] = field(default_factory=dict)
    rules: Rules = field(default_factory=Rules)
    schema: JobSchema = field(default_factory=lambda: JobSchema({}))
    benefit: bool = False
    checks: JobChecks = field(default_factory=JobChecks)
    weights: str | None = None

    @classmethod
    def read(cls, path: str | Path) -> JobFile:
        """The job in a TOML file; what is wrong with it is said with its key."""
        try:
            return cls.from_mapping(tomllib.loads(Path(path).read_text(encoding="utf-8")))
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror}") from error
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}: {error}") from error

    @classmethod
    def from_mapping(cls, told: Mapping[str, Any]) -> JobFile:
        """The job by keys."""
        unknown = [key for key in told if key not in KEYS]
        if unknown:
            raise ValueError(f"there is no key {unknown[0]!r}; there are {', '.join(KEYS)}")
        method = told.get("method")
        known = [AUTO, *(name for name in ESTIMATORS if name != "Best")]
        if method not in known:
            raise ValueError(f"method must be one of {', '.join(known)}, not {method!r}")
        if told.get("name") is not None:
            check_run_name(_text(told, "name"))
        deadline = told.get("deadline", 60.0)
        if not _is_number(deadline) or not 0 < deadline < float("inf"):
            raise ValueError(f"deadline must be a number of seconds above 0, not {deadline!r}")
        seed = told.get("seed")
        if seed is not None and not (isinstance(seed, int) and _is_number(seed) and seed >= 0):
            raise ValueError(f"seed must be a whole number from 0 on, not {seed!r}")
        return cls(
            method,
            told.get("name"),
            _features(told),
            seed,
            float(deadline),
            dict(_section(told, "settings")),
            _rules(_section(told, "rules")),
            JobSchema.from_mapping(told.get("schema", {})),
            _flag(told, "benefit"),
            JobChecks.from_mapping(told.get("checks", {})),
            _column(told, "weights"),
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(told: Mapping[str, Any], name: str) -> str:
    if not isinstance(told[name], str):
        raise ValueError(f"{name} must be text, not {told[name]!r}")
    return str(told[name])


def _section(told: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = told.get(name, {})
    if not isinstance(section, Mapping):
        raise ValueError(f"{name} must be a section: [{name}]")
    return section


def _rules(told: Mapping[str, Any]) -> Rules:
    known = [rule.name for rule in fields(Rules)]
    unknown = [name for name in told if name not in known]
    if unknown:
        raise ValueError(f"there is no rule {unknown[0]!r}; there are {', '.join(known)}")
    return Rules(**told)


def _features(told: Mapping[str, Any]) -> tuple[str, ...] | None:
    columns = told.get("features")
    if columns is None:
        return None
    if not isinstance(columns, list) or not all(isinstance(column, str) for column in columns):
        raise ValueError("features must be a list of names of columns")
    twice = [column for column in columns if columns.count(column) > 1]
    if twice:
        raise ValueError(f"features name {twice[0]!r} twice")
    return tuple(columns)


def _column(told: Mapping[str, Any], name: str) -> str | None:
    value = told.get(name)
    if value is not None and not (isinstance(value, str) and value):
        raise ValueError(f"{name} must be the name of a column")
    return value


def _flag(told: Mapping[str, Any], name: str) -> bool:
    value = told.get(name, False)
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false")
    return value
