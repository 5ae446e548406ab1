"""The journal is the checkpoint: a run folder with one atomic record per closed round.

    run.json              algorithm, settings, seed, roster, features, versions, rules
    round-000001.npz      who was asked, who answered what, who was refused and why
    round-000001.copy     the same bytes, which stand in if the record is damaged
    result.npz            what the server program returned
    lock                  held by the one process that writes here

A record is written beside its place, flushed to disk and renamed, so it exists whole or not at
all, and carries a seal. One damaged record costs nothing, the last one with its copy costs a round;
what cannot be mended stops with the name of the file.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import secrets
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import fedkin
from fedkin.arrays import Arrays, Indices
from fedkin.durable import DAMAGE, FolderLock, load_arrays, save_arrays, write_bytes
from fedkin.federation import Federation
from fedkin.protocol import Ask, ProtocolError, Refusal, Replies, Result

_REPLY = "reply."
_COPY = ".copy"


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
    """Records of one run in one folder.

    With `most_bytes` a run whose replies are more gives its records up, with a warning: whoever
    goes on with it begins anew.
    """

    def __init__(self, folder: str | Path, most_bytes: int | None = None) -> None:
        self.folder = Path(folder)
        self._lock: FolderLock | None = None
        self._most_bytes, self._bytes = most_bytes, 0

    def open(
        self,
        configuration: Mapping[str, Any],
        about: Mapping[str, Any],
        data: Callable[[bytes], str] | None = None,
        patience: float = 0.0,
    ) -> None:
        """Start a run, or make sure that the run in this folder is the same one; until `close`.

        `about` is written down, too, but may differ when the run goes on (rules, deadlines). `data`
        gives a fingerprint of the rows with a salt; engines that see no rows have none. `patience`
        is how many seconds another process may still be at work in the folder.
        """
        self._lock = FolderLock(self.folder)
        self._lock.take(patience)
        try:
            self._begin_or_go_on(configuration, about, data)
        except BaseException:
            self.close()
            raise

    def _begin_or_go_on(
        self,
        configuration: Mapping[str, Any],
        about: Mapping[str, Any],
        data: Callable[[bytes], str] | None,
    ) -> None:
        versions = {"fedkin": fedkin.__version__, "numpy": np.__version__}
        wanted = json.loads(json.dumps(encode({**configuration, "versions": versions})))
        if self.exists():
            kept = self.configuration()
            different = [_difference(key, kept, wanted) for key in wanted]
            told = ", ".join(word for word in different if word)
            if told:
                raise ProtocolError(
                    f"{self.folder} holds another run (its {told} differ); choose another folder "
                    "or remove this one"
                )
            if data is not None and kept["data"] != data(_salt(self.folder, kept["salt"])):
                raise ProtocolError(
                    f"the data changed since the run in {self.folder} began; bring back the rows "
                    "it began with, or start a new run folder"
                )
            return
        facts = {**encode(about), "python": platform.python_version()}
        if data is not None:
            salt = secrets.token_bytes(16)
            facts |= {"salt": salt.hex(), "data": data(salt)}
        text = json.dumps({**facts, **wanted}, indent=1)
        write_bytes(self.folder / "run.json", text.encode())

    def close(self) -> None:
        """Let others work in the folder."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def exists(self) -> bool:
        """Whether the folder holds a run."""
        return (self.folder / "run.json").exists()

    def configuration(self) -> dict[str, Any]:
        """What run.json says, settings still encoded."""
        path = self.folder / "run.json"
        if not path.exists():
            raise ProtocolError(f"{self.folder} holds no run (run.json is missing)")
        try:
            return _Configuration(path, json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError):
            raise _damaged(path) from None

    def append(self, record: Record) -> None:
        """Write down a round that is closed."""
        self._bytes += sum(array.nbytes for array in record.replies.values())
        if self._most_bytes is not None and self._bytes > self._most_bytes:
            self._give_up(record)
            return
        facts = {
            "digest": record.digest,
            "refusals": [refusal.to_json() for refusal in record.refusals],
            "dropped": list(record.dropped),
        }
        arrays = {_REPLY + name: array for name, array in record.replies.items()}
        arrays["asked"], arrays["answered"] = record.asked, record.replies.clients
        arrays["facts"] = np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8)
        path = self._path(record.number)
        save_arrays(path, arrays, copy=path.with_suffix(_COPY))

    def _give_up(self, record: Record) -> None:
        """Remove the records; said once."""
        kept = [path for path in self.folder.glob("round-*") if path.suffix in (".npz", _COPY)]
        for path in kept:
            path.unlink()
        if kept or record.number == 1:
            warnings.warn(
                f"the journal in {self.folder} was given up: {len(record.asked)} sites sent "
                f"{self._bytes / 1e9:.1f} GB up to round {record.number}, and the limit is "
                f"{(self._most_bytes or 0) / 1e9:.1f} GB; the fit goes on and cannot be resumed",
                stacklevel=2,
            )

    def read(self, number: int) -> Record | None:
        """The record of a round, or None if it was never closed or cannot be read."""
        path = self._path(number)
        for place in (path, path.with_suffix(_COPY)):
            if not place.exists():
                continue
            try:
                arrays = load_arrays(place, seal=True)
                return _decoded(number, arrays, json.loads(arrays["facts"].tobytes()))
            except DAMAGE:
                os.replace(place, place.with_name(place.name + ".damaged"))
        return None

    def rounds(self) -> list[int]:
        """Numbers of the rounds that have a record, whole or not."""
        suffixes = (".npz", _COPY)
        found = [p for p in self.folder.glob("round-*") if p.suffix in suffixes]
        return sorted({int(path.stem.removeprefix("round-")) for path in found})

    def discard_from(self, number: int, rewinds: bool = True) -> None:
        """Forget rounds after a gap: they were closed by a program that no longer exists.

        Sites that cannot go back (`rewinds`) more than a round make a gap the end of the run.
        """
        later = [found for found in self.rounds() if found >= number]
        if later and not rewinds:
            raise ProtocolError(
                f"{self._path(number)} is damaged, and so is its copy, but round {later[-1]} was "
                "closed after it; restore the file from a backup or start a new run"
            )
        for found in later:
            for suffix in (".npz", _COPY):
                path = self._path(found).with_suffix(suffix)
                if path.exists():
                    os.replace(path, path.with_name(path.name + ".stale"))

    def finish(self, result: Result) -> None:
        """Keep what the program returned."""
        save_arrays(self.folder / "result.npz", result)

    def result(self) -> Arrays | None:
        """The arrays that the program returned, if it ended."""
        path = self.folder / "result.npz"
        return load_arrays(path, seal=True) if path.exists() else None

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


class _Configuration(dict[str, Any]):
    """What run.json says; what it should say and does not is damage."""

    def __init__(self, path: Path, told: Any) -> None:
        super().__init__(told)
        self._path = path

    def __missing__(self, key: str) -> Any:
        raise _damaged(self._path)


def _damaged(path: Path) -> ProtocolError:
    return ProtocolError(f"{path} is damaged; restore it from a backup or start a new run folder")


def _salt(folder: Path, told: Any) -> bytes:
    try:
        return bytes.fromhex(told)
    except (TypeError, ValueError):
        raise _damaged(folder / "run.json") from None


def _difference(key: str, kept: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """What differs under a key, in words; empty if nothing does."""
    was, now = kept.get(key), wanted[key]
    if was == now:
        return ""
    if isinstance(was, dict) and isinstance(now, dict):
        inside = [f"{name} ({was.get(name)!r}, now {now[name]!r})" for name in now]
        differing = [w for name, w in zip(now, inside) if was.get(name) != now[name]]
        return f"{key}: {', '.join(differing)}" if differing else key
    return key


def data_fingerprint(clients: Federation, salt: bytes) -> str:
    """A salted fingerprint of rows, target and columns: other data give another one."""
    seen = hashlib.blake2b(key=salt[:64], digest_size=32)
    for part in (clients.X, clients.y, clients.weights, clients.offsets):
        seen.update(b"none" if part is None else f"{part.dtype}{part.shape}".encode())
        if part is not None:
            seen.update(np.ascontiguousarray(part).view(np.uint8).data)
    seen.update(json.dumps([clients.feature_names, clients.names]).encode())
    return seen.hexdigest()


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


def replies_of(runs: Path, site: str) -> list[dict[str, Any]]:
    """Every reply of a site that the journals below a folder hold: run, round, fields, bytes."""
    found = []
    for folder in sorted(runs.iterdir()) if runs.is_dir() else []:
        book = Journal(folder)
        told = book.configuration()
        names = list(told.get("names") or told.get("sites") or [])
        if site not in names:
            continue
        for number in book.rounds():
            record = book.read(number)
            if record is None:
                continue
            for k in np.flatnonzero(record.replies.clients == names.index(site)):
                size = sum(array[k].nbytes for array in record.replies.values())
                fields = ", ".join(record.replies)
                found.append({"run": folder.name, "round": number, "fields": fields, "bytes": size})
    return found
