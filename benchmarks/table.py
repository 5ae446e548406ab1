"""A row of the table, what was promised of it, and the ways to write all rows down."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

# What a promise limits, how it is written, and whether more or less is better.
MEASURES = {
    "ratio": "at least {:.4g} x",
    "time": "at most {}",
    "distance": "at most {:.3g} x bound",
    "memory": "at most {:.3g} GiB",
}


# Times that differ by less than this factor are level: so much one run differs from the next.
LEVEL = 1.1


@dataclass(frozen=True)
class Promise:
    """A limit that the method's plan set: `measure` is a key of MEASURES."""

    measure: str
    limit: float

    def __str__(self) -> str:
        limit = seconds(self.limit) if self.measure == "time" else self.limit
        return MEASURES[self.measure].format(limit)


@dataclass(frozen=True)
class Row:
    """One piece of work done by us and, mostly, by a peer. Times in seconds, memory in GiB."""

    work: str
    ours: float
    peer: str = ""
    peer_time: float | None = None
    promise: Promise | None = None
    bound: str = ""  # what `bound_time` is the time of
    bound_time: float | None = None
    difference: float | None = None  # the largest between the peer's result and ours
    memory: float | None = None
    turns: int = 1  # timings behind our median
    peer_turns: int = 0
    threads: int = 1
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """How many times faster we are than the peer."""
        return None if self.peer_time is None else self.peer_time / self.ours

    @property
    def standing(self) -> str:
        """Whether we are ahead of the peer, level with it or behind; nothing without a peer."""
        if self.ratio is None:
            return ""
        return "ahead" if self.ratio > LEVEL else "behind" if self.ratio < 1 / LEVEL else "level"

    @property
    def distance(self) -> float | None:
        """How many times the bound we take."""
        return None if self.bound_time is None else self.ours / self.bound_time

    @property
    def holds(self) -> bool | None:
        """Whether the promise is kept; None where nothing was promised."""
        if self.promise is None:
            return None
        measure, limit = self.promise.measure, self.promise.limit
        if measure == "ratio":
            return self.ratio is not None and self.ratio >= limit
        found = {"time": self.ours, "distance": self.distance, "memory": self.memory}[measure]
        return found is not None and found <= limit

    @classmethod
    def from_dict(cls, written: dict[str, Any]) -> Row:
        """The row that `dataclasses.asdict` took apart."""
        promise = written["promise"]
        return cls(**{**written, "promise": Promise(**promise) if promise else None})


COLUMNS = (
    "work",
    "threads",
    "peer",
    "peer time",
    "ours",
    "ratio",
    "standing",
    "promised",
    "holds",
    "bound",
    "distance",
    "difference",
    "note",
)


def seconds(value: float) -> str:
    """A time for eyes."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e6:.3g} µs"


def times(value: float) -> str:
    """A ratio for eyes."""
    digits = 2 if value < 2 else 1 if value < 100 else 0
    return f"{value:.{digits}f} x"


def notes_of(rows: Iterable[Row]) -> list[str]:
    """The different notes, in order of appearance."""
    return list(dict.fromkeys(row.note for row in rows if row.note))


def cells(row: Row, notes: Sequence[str]) -> list[str]:
    """A row as text; its note as a number."""
    holds = {None: "", True: "yes", False: "NO"}[row.holds]
    bound = "" if row.bound_time is None else f"{row.bound}, {seconds(row.bound_time)}"
    ours = seconds(row.ours) + ("" if row.memory is None else f", {row.memory:.2g} GiB")
    return [
        row.work,
        str(row.threads),
        row.peer,
        "" if row.peer_time is None else seconds(row.peer_time),
        ours,
        "" if row.ratio is None else times(row.ratio),
        row.standing,
        str(row.promise or ""),
        holds,
        bound,
        "" if row.distance is None else times(row.distance),
        "" if row.difference is None else f"{row.difference:.0e}",
        f"({notes.index(row.note) + 1})" if row.note else "",
    ]


def text(rows: Sequence[Row]) -> str:
    """The table for a terminal."""
    notes = notes_of(rows)
    lines = [list(COLUMNS), *(cells(row, notes) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    lines.insert(1, ["-" * width for width in widths])
    printed = ["  ".join(c.ljust(w) for c, w in zip(line, widths)).rstrip() for line in lines]
    return "\n".join([*printed, "", *_numbered(notes), *verdict(rows)])


def markdown(rows: Sequence[Row]) -> str:
    """The same table for a page."""
    notes = notes_of(rows)
    lines = [list(COLUMNS), ["---"] * len(COLUMNS), *(cells(row, notes) for row in rows)]
    verdicts = [f"- {line}" for line in verdict(rows)]
    return "\n".join([*_piped(lines), "", *_numbered(notes), "", *verdicts])


def summary(rows: Sequence[Row]) -> str:
    """One line a work, for a page: the strongest peer and where we stand."""
    columns = ["work", "threads", "strongest peer", "ratio", "standing"]
    lines = [columns, ["---"] * len(columns)]
    lines += [
        [row.work, str(row.threads), row.peer, times(row.ratio or 0.0), row.standing]
        for row in strongest(rows)
    ]
    return "\n".join(_piped(lines))


def _piped(lines: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(line) + " |" for line in lines]


def _numbered(notes: Sequence[str]) -> list[str]:
    return [f"({number}) {note}  " for number, note in enumerate(notes, 1)]


def verdict(rows: Sequence[Row]) -> list[str]:
    """What was promised and holds, and where we stand against the strongest peer of each work."""
    promised = [row for row in rows if row.promise is not None]
    broken = [row for row in promised if not row.holds]
    lines = [f"Promises that hold: {len(promised) - len(broken)} of {len(promised)}."]
    lines += [f"Promise NOT kept: {_named(row)}, {row.promise}." for row in broken]
    hardest = strongest(rows)
    if hardest:
        count = {word: sum(row.standing == word for row in hardest) for word in STANDINGS}
        lines.append(
            f"Against the strongest peer of each work: ahead in {count['ahead']}, level (within "
            f"{LEVEL - 1:.0%}) in {count['level']}, behind in {count['behind']} of {len(hardest)}."
        )
    for word in ("behind", "level"):
        found = [row for row in rows if row.standing == word]
        lines += [f"{STANDINGS[word]}: {_named(row)}, {times(row.ratio or 0)}." for row in found]
    return lines if any(row.standing == "behind" for row in rows) else [*lines, "Behind no peer."]


STANDINGS = {"ahead": "Ahead of the peer", "level": "Level with", "behind": "Behind the peer"}


def strongest(rows: Sequence[Row]) -> list[Row]:
    """Of every work and number of threads the row of the fastest peer."""
    hardest: dict[tuple[str, int], Row] = {}
    for row in rows:
        if row.peer_time is not None:
            key = row.work, row.threads
            before = hardest.get(key)
            if before is None or row.peer_time < (before.peer_time or 0.0):
                hardest[key] = row
    return list(hardest.values())


def _named(row: Row) -> str:
    against = f" against {row.peer}" if row.peer else ""
    return f"{row.work}{against} ({row.threads} thread{'s' if row.threads > 1 else ''})"


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """All numbers, unrounded, one line a row."""
    names = [field.name for field in fields(Row)]
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(
            file,
            [*names, "ratio", "standing", "distance", "holds"],
            lineterminator="\n",
            restval="",
        )
        writer.writeheader()
        for row in rows:
            found = {**asdict(row), "promise": row.promise and str(row.promise)}
            found |= {"ratio": row.ratio, "standing": row.standing}
            found |= {"distance": row.distance, "holds": row.holds}
            writer.writerow({k: "" if v is None else v for k, v in found.items()})
