"""The journal is the checkpoint: a run folder with one atomic record per closed round.

    run.json              algorithm, settings, seed, roster, rules, versions
    round-000001.npz      who was asked, who answered what, who was refused and why
    result.npz            what the server program returned

A record is written beside its place, flushed to disk and renamed, so it exists whole or not at
all; a damaged last record (a lost disk cache, say) is set aside and the round is asked again.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import fedkin
from fedkin.arrays import Arrays, Indices
from fedkin.durable import DAMAGE, load_arrays, save_arrays, write_bytes
from fedkin.protocol import Ask, ProtocolError, Refusal, Replies, Result

_REPLY = "reply."


@dataclass(frozen=True)
class Record:
    """One closed round."""

    number: int
    digest: str
    asked: Indices
    replies: Replies
    refusals: tuple[Refusal, ...]
    dropped: tuple[int, ...] = ()


class Journal:
    """Records of one run in one folder."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def open(self, configuration: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        """Start a run, or make sure that the run in this folder is the same one.

        `about` is written down, too, but may differ when the run goes on (rules, deadlines).
        """
        wanted = json.loads(json.dumps(encode(configuration)))
        path = self.folder / "run.json"
        if path.exists():
            kept = self.configuration()
            different = [key for key in wanted if kept.get(key) != wanted[key]]
            if different:
                raise ProtocolError(
                    f"{self.folder} holds another run (its {', '.join(different)} differ); "
                    "choose another folder or remove this one"
                )
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        versions = {
            "fedkin": fedkin.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        }
        told = {**wanted, **encode(about), "versions": versions}
        text = json.dumps(told, indent=1)
        write_bytes(path, text.encode())

    def configuration(self) -> dict[str, Any]:
        """What run.json says, settings still encoded."""
        path = self.folder / "run.json"
        if not path.exists():
            raise ProtocolError(f"{self.folder} holds no run (run.json is missing)")
        loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return loaded

    def append(self, record: Record) -> None:
        """Write down a round that is closed."""
        facts = {
            "digest": record.digest,
            "refusals": [refusal.to_json() for refusal in record.refusals],
            "dropped": list(record.dropped),
        }
        arrays = {_REPLY + name: array for name, array in record.replies.items()}
        arrays["asked"], arrays["answered"] = record.asked, record.replies.clients
        arrays["facts"] = np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8)
        save_arrays(self._path(record.number), arrays)

    def read(self, number: int) -> Record | None:
        """The record of a round, or None if it was never closed or cannot be read."""
        path = self._path(number)
        if not path.exists():
            return None
        try:
            arrays = load_arrays(path)
            return _decoded(number, arrays, json.loads(arrays["facts"].tobytes()))
        except DAMAGE:
            os.replace(path, path.with_suffix(".damaged"))
            return None

    def discard_from(self, number: int) -> None:
        """Forget rounds after a gap: they were closed by a program that no longer exists."""
        for path in self.folder.glob("round-*.npz"):
            if int(path.stem.removeprefix("round-")) >= number:
                os.replace(path, path.with_suffix(".stale"))

    def finish(self, result: Result) -> None:
        """Keep what the program returned."""
        save_arrays(self.folder / "result.npz", result)

    def result(self) -> Arrays | None:
        """The arrays that the program returned, if it ended."""
        path = self.folder / "result.npz"
        return load_arrays(path) if path.exists() else None

    def _path(self, number: int) -> Path:
        return self.folder / f"round-{number:06d}.npz"


def _decoded(number: int, arrays: Arrays, facts: dict[str, Any]) -> Record:
    reply = {n.removeprefix(_REPLY): a for n, a in arrays.items() if n.startswith(_REPLY)}
    return Record(
        number,
        facts["digest"],
        arrays["asked"],
        Replies(arrays["answered"], reply),
        tuple(map(Refusal.from_json, facts["refusals"])),
        tuple(facts["dropped"]),
    )


def digest(ask: Ask) -> str:
    """A fingerprint of what was asked, to tell a foreign journal from our own."""
    seen = hashlib.sha256("+".join([ask.step, *ask.fields]).encode())
    for kind in (ask.common, ask.personal):
        for name in sorted(kind):
            array = np.ascontiguousarray(kind[name])
            seen.update(f"{name}{array.dtype}{array.shape}".encode())
            seen.update(array.tobytes())
    return seen.hexdigest()


def encode(value: Any) -> Any:
    """Settings as JSON can hold them; arrays keep their type, shape and every bit."""
    if isinstance(value, np.ndarray):
        return {"array": value.tolist(), "dtype": str(value.dtype), "shape": list(value.shape)}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    return value


def decode(value: Any) -> Any:
    """The inverse of `encode` (tuples come back as lists)."""
    if isinstance(value, dict):
        if value.keys() == {"array", "dtype", "shape"}:
            return np.array(value["array"], dtype=value["dtype"]).reshape(value["shape"])
        return {key: decode(item) for key, item in value.items()}
    if isinstance(value, list):
        return [decode(item) for item in value]
    return value
