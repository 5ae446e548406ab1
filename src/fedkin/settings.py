"""What can be set: names, defaults, what is allowed, and what sites get to see, in one place.

An algorithm has one frozen class of settings. Estimators take their parameters, defaults and checks
from it, engines accept nothing else, and a value that is not allowed never gets past the
constructor:

    class FmlrSettings(Settings):
        n_components: int | None = setting(None, Whole(or_none=True))
        fit_intercept: bool = setting(True, Flag(), at_site=True)

What depends on several settings at once is checked in `check_together`; what follows from them is a
property. `presets` are named sets of values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, dataclass_transform

import numpy as np


class Constraint(Protocol):
    """What a setting may be."""

    def accept(self, name: str, value: Any) -> Any:
        """The value as it will be used; a ValueError names the setting, the value, the remedy."""


@dataclass(frozen=True)
class OneOf:
    """One of a list of values."""

    choices: tuple[Any, ...]

    def accept(self, name: str, value: Any) -> Any:
        """The value, if it is on the list."""
        if not any(_same(value, choice) for choice in self.choices):
            listed = ", ".join(repr(choice) for choice in self.choices)
            raise ValueError(f"{name} must be one of {listed}, not {value!r}")
        return value


def _same(value: Any, choice: Any) -> bool:
    """Whether they are equal; 1 is not True here, and an array equals nothing."""
    if isinstance(value, np.ndarray) or isinstance(value, bool) != isinstance(choice, bool):
        return False
    return bool(value == choice)


def one_of(*choices: Any) -> OneOf:
    """One of these values."""
    return OneOf(choices)


@dataclass(frozen=True)
class Flag:
    """True or False; whatever can only be one of them is taken as it is."""

    def accept(self, name: str, value: Any) -> Any:
        """The value as a bool."""
        if not isinstance(value, bool | np.bool_ | Integral):
            raise ValueError(f"{name} must be True or False, not {value!r}")
        return bool(value)


@dataclass(frozen=True)
class Whole:
    """A whole number of at least `least`."""

    least: int = 1
    or_none: bool = False

    def accept(self, name: str, value: Any) -> Any:
        """The value, if it is such a number."""
        if value is None and self.or_none:
            return None
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise ValueError(f"{name} must be a whole number, not {value!r}")
        if value < self.least:
            raise ValueError(f"{name} must be at least {self.least}, not {value}")
        return int(value)


@dataclass(frozen=True)
class Number:
    """A number, above or at least something, up to something; NaN never is."""

    above: float | None = None
    least: float | None = None
    most: float | None = None
    or_none: bool = False
    words: tuple[str, ...] = ()

    def accept(self, name: str, value: Any) -> Any:
        """The value as a float, if it is in the range."""
        if (value is None and self.or_none) or (isinstance(value, str) and value in self.words):
            return value
        if isinstance(value, bool) or not isinstance(value, Real):
            listed = "".join(f" or {word!r}" for word in self.words)
            raise ValueError(f"{name} must be a number{listed}, not {value!r}")
        number = float(value)
        high = self.most is None or number <= self.most
        low = self.above is None or number > self.above
        if not (high and low and (self.least is None or number >= self.least)) or np.isnan(number):
            raise ValueError(f"{name} must be {self._range()}, not {value}")
        return number

    def _range(self) -> str:
        parts = [
            f"above {self.above:g}" if self.above is not None else "",
            f"at least {self.least:g}" if self.least is not None else "",
            f"at most {self.most:g}" if self.most is not None else "",
        ]
        return " and ".join(part for part in parts if part) or "a number"


# A share of the sites asked in each round.
FRACTION = Number(above=0.0, most=1.0)


@dataclass(frozen=True)
class Start:
    """Where a fit starts: one of some words, or numbers to start from."""

    words: tuple[str, ...]
    least_axes: int = 0

    def accept(self, name: str, value: Any) -> Any:
        """The word, or finite numbers as an array."""
        if isinstance(value, str):
            return OneOf(self.words).accept(name, value)
        if value is None:
            listed = ", ".join(map(repr, self.words))
            raise ValueError(f"{name} must be one of {listed} or an array, not None")
        given = np.array(value, dtype=np.float64, ndmin=self.least_axes)
        odd = np.argwhere(~np.isfinite(given))
        if len(odd):
            where = ", ".join(str(i) for i in odd[0])
            raise ValueError(
                f"{name} has entries that are not finite ({len(odd)}, the first at [{where}]); "
                "give numbers, or a word with which the fit finds its own start"
            )
        return given


def setting(default: Any, constraint: Constraint | None = None, *, at_site: bool = False) -> Any:
    """One setting: its default, what it may be, and whether sites get to see it."""
    metadata = {"constraint": constraint, "at_site": at_site}
    # A factory, not a default: the class then has no attribute of that name, so that reading a
    # setting which a site does not see is an error and not the default.
    return dataclasses.field(default_factory=lambda: default, metadata=metadata)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(setting,))
class Settings:
    """Base of every algorithm's settings; subclasses become frozen dataclasses by themselves.

    Fields are settings by name, in the order in which an estimator shows them.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(frozen=True, kw_only=True, eq=False)(cls)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            constraint = field.metadata["constraint"]
            if constraint is not None:
                value = constraint.accept(field.name, getattr(self, field.name))
                object.__setattr__(self, field.name, value)
        self.check_together()

    def check_together(self) -> None:
        """Complain about values that do not go together."""

    if not TYPE_CHECKING:  # a checker would take every name for a setting

        def __getattr__(self, name):
            """Only asked for what is not there: at a site, settings that are not its business."""
            if name not in type(self).defaults():
                raise AttributeError(f"{type(self).__name__} has no setting {name!r}")
            raise AttributeError(
                f"sites do not see the setting {name!r}; if client functions need it, declare it "
                f"in {type(self).__name__} with at_site=True"
            )

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Every setting there is, with its default."""
        return {f.name: f.default_factory() for f in dataclasses.fields(cls)}  # type: ignore

    @classmethod
    def seen_at_sites(cls) -> tuple[str, ...]:
        """Names of the settings that client functions read; nothing else is sent to a site."""
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]
        return tuple(f.name for f in fields if f.metadata["at_site"])

    @classmethod
    def preset(cls, name: str, **others: Any) -> Self:
        """The named set of values; `others` come on top."""
        return cls(**{**cls.presets[name], **others})

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Settings by name; an unknown name is an error."""
        unknown = sorted(set(values) - set(cls.defaults()))
        if unknown:
            raise ValueError(f"{cls.__name__} has no setting {', '.join(unknown)}")
        return cls(**values)

    def to_mapping(self) -> dict[str, Any]:
        """Settings by name, as far as they are there."""
        return dict(vars(self))

    def replace(self, **changes: Any) -> Self:
        """The same with some other values."""
        return type(self)(**{**self.to_mapping(), **changes})

    def for_sites(self) -> Self:
        """The part that sites get to see; reading any other setting is an AttributeError."""
        return self.at_site({name: getattr(self, name) for name in self.seen_at_sites()})

    @classmethod
    def at_site(cls, values: Mapping[str, Any]) -> Self:
        """What a site makes of the part that was sent to it; too few or too many is an error."""
        wanted = cls.seen_at_sites()
        if set(values) != set(wanted):
            different = ", ".join(sorted(set(values) ^ set(wanted)))
            raise ValueError(
                f"{cls.__name__}: sites see other settings than were sent: {different}"
            )
        made = object.__new__(cls)
        constraints = {f.name: f.metadata["constraint"] for f in dataclasses.fields(cls)}  # type: ignore
        for name in wanted:
            rule, value = constraints[name], values[name]
            accepted = value if rule is None else rule.accept(name, value)
            object.__setattr__(made, name, accepted)
        return made


class NoSettings(Settings):
    """Nothing can be set."""
