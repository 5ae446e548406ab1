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
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import fedkin
from fedkin.protocol import (
    Arrays,
    Ask,
    Indices,
    ProtocolError,
    Reason,
    Refusal,
    Replies,
    Result,
    Settings,
)

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
            found = self.configuration()
            different = [key for key in wanted if found.get(key) != wanted[key]]
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
        _replace(path, text.encode())

    def configuration(self) -> dict[str, Any]:
        """What run.json says, settings still encoded."""
        path = self.folder / "run.json"
        if not path.exists():
            raise ProtocolError(f"{self.folder} holds no run (run.json is missing)")
        loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return loaded

    def append(self, record: Record) -> None:
        """Close a round."""
        facts = {
            "digest": record.digest,
            "refusals": [{**asdict(r), "reason": r.reason.name} for r in record.refusals],
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
            with np.load(path, allow_pickle=False) as stored:
                arrays = dict(stored)
            return _decoded(number, arrays, json.loads(arrays["facts"].tobytes()))
        except _DAMAGE:
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

    def result(self) -> Result | None:
        """What the program returned, if it ended."""
        path = self.folder / "result.npz"
        if not path.exists():
            return None
        with np.load(path, allow_pickle=False) as stored:
            return dict(stored)

    def _path(self, number: int) -> Path:
        return self.folder / f"round-{number:06d}.npz"


# What reading a damaged npz file can raise.
_DAMAGE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    EOFError,
    NotImplementedError,
    zipfile.BadZipFile,
    zlib.error,
)


def _decoded(number: int, arrays: Arrays, facts: dict[str, Any]) -> Record:
    reply = {n.removeprefix(_REPLY): a for n, a in arrays.items() if n.startswith(_REPLY)}
    return Record(
        number,
        facts["digest"],
        arrays["asked"],
        Replies(arrays["answered"], reply),
        tuple(Refusal(**{**r, "reason": Reason[r["reason"]]}) for r in facts["refusals"]),
        tuple(facts["dropped"]),
    )


def digest(ask: Ask) -> str:
    """A fingerprint of what was asked, to tell a foreign journal from our own."""
    seen = hashlib.sha256(ask.step.encode())
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


def settings_of(configuration: Mapping[str, Any]) -> Settings:
    """The settings of a run as its program wants them."""
    settings: Settings = decode(configuration["settings"])
    return settings


def save_arrays(path: Path, arrays: Arrays) -> None:
    """Write an npz file that exists whole or not at all."""
    beside = path.with_suffix(".part")
    with open(beside, "wb") as file:
        np.savez(file, **dict(arrays))  # type: ignore[arg-type]
        file.flush()
        os.fsync(file.fileno())
    move_durably(beside, path)


def move_durably(source: Path, target: Path) -> None:
    """Rename so that a power cut leaves one of the two names, not neither."""
    os.replace(source, target)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _replace(path: Path, content: bytes) -> None:
    beside = path.with_suffix(".part")
    with open(beside, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    move_durably(beside, path)
