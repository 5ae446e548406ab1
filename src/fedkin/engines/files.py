"""A federation by files: every site writes its reply to a file, a coordinator reads them.

No network at all; fit for algorithms that ask once. A site writes what it would answer
(`write_reply`), checked against the declared schema before it is written; `ReplyFiles` answers the
one question from the files, through the same gate and the same books as every engine. A reply file
is an npz file of the declared arrays and a line of JSON: which site, algorithm, settings, columns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedkin.arrays import Arrays, Indices
from fedkin.durable import DAMAGE, load_arrays, own_salt, private_folder, save_arrays
from fedkin.engines.driver import Rules, drive
from fedkin.engines.journal import Record
from fedkin.federation import Federation
from fedkin.names import canonical_name, name_order
from fedkin.privacy.disclosure import DEFAULT_RULES, DisclosureRules, Guard, Released
from fedkin.privacy.ledger import Ledger
from fedkin.protocol import (
    LARGEST_MESSAGE,
    Algorithm,
    Ask,
    Fault,
    Memory,
    ProtocolError,
    Reason,
    Roster,
    Run,
)
from fedkin.protocol.gate import Batch, Faults
from fedkin.randomness import KeyRing
from fedkin.settings import Settings

_ABOUT = "about"


@dataclass(frozen=True)
class ReplyFile:
    """What one site sent: named arrays with the site as first axis, and how they came about."""

    site: str
    algorithm: str
    settings: Mapping[str, Any]
    feature_names: tuple[str, ...]
    arrays: Arrays


def write_reply(
    path: str | Path,
    algorithm: Algorithm,
    ask: Ask,
    clients: Federation,
    settings: Settings,
    seed: int = 0,
    least_rows: int = 0,
    ledger: str | Path | None = None,
    disclosure: DisclosureRules | None = DEFAULT_RULES,
) -> ReplyFile:
    """Answer `ask` for the site's own data and write the answer to a file.

    What the schema, the disclosure rules or the site's own `least_rows` forbid is not written: a
    ValueError says why. With a ledger, earlier letters are remembered (differencing).
    """
    if clients.n_clients != 1:
        raise ValueError(f"a reply file comes from one site, not {clients.n_clients}")
    algorithm.check(settings)
    own = settings.for_sites()
    cache = algorithm.prepare(clients, own)
    keys = KeyRing(clients.names, seed).at(1)
    answer = algorithm.answer(ask, clients, cache, own, None, keys, least_rows=least_rows)
    site, fault, arrays = clients.names[0], answer.faults.get(0), answer.arrays
    step = algorithm.step(ask.step)
    if fault is None and disclosure is not None:
        guard = Guard(disclosure, clients, released=_released(ledger))
        behind = None if answer.behind is None else answer.behind()
        arrays, fault = guard.release(
            step.replies(ask.fields), arrays, behind, ask.common, step.cuts
        )
    if fault is not None:
        raise ValueError(f"site {site!r}: nothing was written: {fault}")
    about = {
        "site": site,
        "algorithm": algorithm.name,
        "settings": own.to_mapping(),
        "features": list(clients.feature_names),
    }
    if ledger is not None:
        Ledger(ledger).record(algorithm.name, 1, ask.step, [site], arrays)
    save_arrays(Path(path), {**arrays, _ABOUT: np.array(json.dumps(about))})
    return ReplyFile(site, algorithm.name, own.to_mapping(), clients.feature_names, arrays)


def _released(ledger: str | Path | None) -> Released | None:
    if ledger is None:
        return None
    folder = private_folder(Path(ledger))
    return Released(folder / "released", own_salt(folder))


def read_reply(path: str | Path) -> ReplyFile:
    """A site's reply; a file that is none is refused by name."""
    try:
        arrays = load_arrays(path, most_bytes=LARGEST_MESSAGE)
        about: dict[str, Any] = json.loads(str(arrays.pop(_ABOUT)))
        site = canonical_name(about["site"])
        settings, features = dict(about["settings"]), tuple(map(str, about["features"]))
        return ReplyFile(site, str(about["algorithm"]), settings, features, arrays)
    except DAMAGE as error:
        raise ValueError(f"{path} is not a reply file of a fedkin site: {error}") from None


@dataclass(frozen=True)
class ReplyFiles:
    """The engine that answers from the sites' reply files."""

    files: Sequence[ReplyFile]
    rules: Rules = field(default_factory=Rules)

    @classmethod
    def read(cls, paths: Sequence[str | Path], rules: Rules | None = None) -> ReplyFiles:
        """Read the sites' reply files; two of one site are an error."""
        by_site: dict[str, ReplyFile] = {}
        for path in paths:
            file = read_reply(path)
            if file.site in by_site:
                raise ValueError(f"two reply files come from site {file.site!r}; keep one of them")
            by_site[file.site] = file
        if not by_site:
            raise ValueError("there are no reply files to combine")
        ordered = [by_site[site] for site in sorted(by_site, key=name_order)]
        return cls(ordered, rules or Rules())

    def run(
        self, algorithm: Algorithm, settings: Settings, federation: Federation | None, seed: int = 0
    ) -> Run:
        """Run the server program on what the files say."""
        if federation is not None:
            raise ValueError("the files hold the sites' answers; fit() takes no data here")
        algorithm.check(settings)
        self._check(algorithm, settings.for_sites().to_mapping())
        roster = Roster(tuple(file.site for file in self.files), seed)
        return drive(algorithm, settings, roster, _FileLink(algorithm, self.files), self.rules)

    def _check(self, algorithm: Algorithm, wanted: Mapping[str, Any]) -> None:
        """All files answer the same question about the same columns."""
        first = self.files[0]
        for file in self.files:
            if file.algorithm != algorithm.name:
                raise ValueError(f"site {file.site!r} wrote for {file.algorithm}")
            for name, value in wanted.items():
                if file.settings.get(name) != value:
                    raise ValueError(
                        f"site {file.site!r} fitted with {name}={file.settings.get(name)!r}, "
                        f"not {value!r}; let all sites write with the same settings"
                    )
            if file.feature_names != first.feature_names:
                raise ValueError(
                    f"site {file.site!r} has the columns {', '.join(file.feature_names)}; site "
                    f"{first.site!r} has {', '.join(first.feature_names)}: make them the same"
                )


class _FileLink:
    """Answers the first question; there is nobody to ask a second one."""

    gated = False
    rewinds = False
    last_error: Exception | None = None

    def __init__(self, algorithm: Algorithm, files: Sequence[ReplyFile]) -> None:
        self.algorithm, self.files = algorithm, files

    def exchange(self, number: int, ask: Ask, asked: Indices) -> tuple[Sequence[Batch], Faults]:
        if number > 1:
            raise ProtocolError(
                "reply files answer one round; ask for no further ones (refine_rounds=0)"
            )
        batches: list[Batch] = []
        faults: Faults = {}
        wanted = self.algorithm.step(ask.step).replies(ask.fields)
        for k in map(int, asked):
            arrays = self.files[k].arrays
            missing = [name for name in wanted if name not in arrays]
            if missing:
                faults[k] = Fault(Reason.MISSING, missing[0])
            else:
                batches.append((np.array([k]), {name: arrays[name] for name in wanted}))
        return batches, faults

    def settle(self, number: int, accepted: Indices) -> None:
        """Sites keep nothing between reply files."""

    def replay(self, ask: Ask, record: Record) -> None:
        """There is no journal: the files are one."""

    def deliver(self, result: Any) -> None:
        """Everybody's model is where the result is."""

    def finish(self) -> Faults:
        """Nobody waits for an end."""
        return {}

    def memories(self) -> Memory:
        return None
