"""A federation by letters: sites write files, a coordinator reads them. No network at all.

Fit for algorithms that ask once. A site writes what it would answer (`write_letter`), checked
against the declared schema before it is written; `Letters` answers the one question from the files,
through the same gate and the same books as every engine. A letter is an npz file of the declared
arrays and a line of JSON: which site, algorithm, settings and columns.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedkin.engines.driver import Rules, drive
from fedkin.engines.journal import Record, save_arrays
from fedkin.federation import Federation
from fedkin.names import canonical_name, name_order
from fedkin.privacy.ledger import Ledger
from fedkin.protocol import (
    Algorithm,
    Arrays,
    Ask,
    Block,
    Fault,
    Indices,
    Memory,
    Outcome,
    ProtocolError,
    Reason,
    Roster,
    Settings,
    inspect,
)
from fedkin.randomness import KeyRing

_ABOUT = "about"


@dataclass(frozen=True)
class Letter:
    """What one site sent: named arrays with the site as first axis, and how they came about."""

    site: str
    algorithm: str
    settings: Settings
    feature_names: tuple[str, ...]
    arrays: Arrays


def write_letter(
    path: str | Path,
    algorithm: Algorithm,
    step: str,
    clients: Federation,
    settings: Settings,
    seed: int = 0,
    least_rows: int = 0,
    ledger: str | Path | None = None,
) -> Letter:
    """Answer `step` for the site's own data and write the answer to a file.

    What the schema, or the site's own `least_rows`, forbids is not written: a ValueError says why.
    """
    if clients.n_clients != 1:
        raise ValueError(f"a letter comes from one site, not {clients.n_clients}")
    own = algorithm.settings_for_clients(algorithm.completed(settings))
    known = algorithm.steps[step]
    cache = algorithm.prepare(clients, own)
    keys = KeyRing(clients.names, seed).at(1)
    reply, _ = known.function(clients, cache, own, {}, {}, None, keys)
    me = np.zeros(1, dtype=np.intp)
    _, faults = inspect(known.reply, [(me, reply)], {}, clients.sizes, least_rows)
    site = clients.names[0]
    if faults:
        reason, name = faults[0]
        raise ValueError(f"site {site!r}: nothing was written: {reason} in {name!r}")
    about = {
        "site": site,
        "algorithm": algorithm.name,
        "settings": dict(own),
        "features": list(clients.feature_names),
    }
    if ledger is not None:
        Ledger(ledger).record(algorithm.name, 1, step, [site], reply)
    save_arrays(Path(path), {**reply, _ABOUT: np.array(json.dumps(about))})
    return Letter(site, algorithm.name, own, clients.feature_names, reply)


def read_letter(path: str | Path) -> Letter:
    """A site's letter; a file that is none is refused by name."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = dict(stored)
        about: dict[str, Any] = json.loads(str(arrays.pop(_ABOUT)))
        site = canonical_name(about["site"])
        settings, features = dict(about["settings"]), tuple(map(str, about["features"]))
        return Letter(site, str(about["algorithm"]), settings, features, arrays)
    except (KeyError, TypeError, ValueError, OSError, EOFError) as error:
        raise ValueError(f"{path} is not a letter of a fedkin site: {error}") from None


@dataclass(frozen=True)
class Letters:
    """The engine that answers from letters."""

    letters: Sequence[Letter]
    rules: Rules = field(default_factory=Rules)

    @classmethod
    def read(cls, paths: Sequence[str | Path], rules: Rules | None = None) -> Letters:
        """From the sites' files; two of one site are an error."""
        found: dict[str, Letter] = {}
        for path in paths:
            letter = read_letter(path)
            if letter.site in found:
                raise ValueError(f"two letters come from site {letter.site!r}; keep one of them")
            found[letter.site] = letter
        if not found:
            raise ValueError("there are no letters to combine")
        ordered = [found[site] for site in sorted(found, key=name_order)]
        return cls(ordered, rules or Rules())

    def run(
        self, algorithm: Algorithm, settings: Settings, federation: Federation | None, seed: int = 0
    ) -> Outcome:
        """Run the server program on what the letters say."""
        if federation is not None:
            raise ValueError("the letters hold the sites' answers; fit() takes no data here")
        settings = algorithm.completed(settings)
        self._check(algorithm, algorithm.settings_for_clients(settings))
        roster = Roster(tuple(letter.site for letter in self.letters), seed)
        return drive(algorithm, settings, roster, _LetterLink(algorithm, self.letters), self.rules)

    def _check(self, algorithm: Algorithm, wanted: Settings) -> None:
        """All letters answer the same question about the same columns."""
        first = self.letters[0]
        for letter in self.letters:
            if letter.algorithm != algorithm.name:
                raise ValueError(f"site {letter.site!r} wrote for {letter.algorithm}")
            for name, value in wanted.items():
                if letter.settings.get(name) != value:
                    raise ValueError(
                        f"site {letter.site!r} fitted with {name}={letter.settings.get(name)!r}, "
                        f"not {value!r}; let all sites write with the same settings"
                    )
            if letter.feature_names != first.feature_names:
                raise ValueError(
                    f"site {letter.site!r} has the columns {', '.join(letter.feature_names)}; site "
                    f"{first.site!r} has {', '.join(first.feature_names)}: make them the same"
                )


class _LetterLink:
    """Answers the first question; there is nobody to ask a second one."""

    sizes: Indices | None = None
    least_rows = 0
    last_error: Exception | None = None

    def __init__(self, algorithm: Algorithm, letters: Sequence[Letter]) -> None:
        self.algorithm, self.letters = algorithm, letters

    def exchange(
        self, number: int, ask: Ask, asked: Indices
    ) -> tuple[Sequence[Block], dict[int, Fault]]:
        if number > 1:
            raise ProtocolError(
                "letters answer one round; ask for no further ones (refine_rounds=0)"
            )
        blocks: list[Block] = []
        failed: dict[int, Fault] = {}
        wanted = self.algorithm.steps[ask.step].reply
        for k in map(int, asked):
            arrays = self.letters[k].arrays
            missing = [name for name in wanted if name not in arrays]
            if missing:
                failed[k] = (Reason.MISSING, missing[0])
            else:
                blocks.append((np.array([k]), {name: arrays[name] for name in wanted}))
        return blocks, failed

    def settle(self, number: int, accepted: Indices) -> None:
        """Sites keep nothing between letters."""

    def replay(self, ask: Ask, record: Record) -> None:
        """There is no journal: the letters are one."""

    def finish(self) -> None:
        """Nobody waits for an end."""

    def memories(self) -> Memory:
        return None
