"""Files that exist whole or not at all, private to their owner, with a seal that tells damage.

An npz file written here carries the SHA-256 of itself as the comment of its archive, so any reader
of npz files can open it, and ours notices a single flipped bit.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import math
import os
import secrets
import time
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np

from fedkin.arrays import Array, Arrays

# What reading a damaged npz file can raise.
DAMAGE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    EOFError,
    NotImplementedError,
    RuntimeError,
    SyntaxError,
    zipfile.BadZipFile,
    zlib.error,
)
# Nobody but the owner reads what a run, a site or a key holder keeps.
PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
# Seconds between looks at a lock that somebody else holds.
LOCK_POLL = 0.2
# What the process's own mask leaves of these: for files that are made to be handed on.
ANYBODY = 0o666
_SEAL = b"fedkin sha256 "
_SEAL_LENGTH = len(_SEAL) + hashlib.sha256().digest_size * 2
# The last two bytes of an archive without a comment: its comment's length.
_NO_COMMENT = b"\0\0"


class Locked(RuntimeError):
    """Another process works in this folder."""


def private_folder(path: Path) -> Path:
    """The folder, made for its owner alone if it was not there."""
    missing = [p for p in (path, *path.parents) if not p.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    return path


def close_to_others(folder: Path) -> None:
    """Take everybody else's rights from a folder and all that is in it."""
    for place in (folder, *folder.rglob("*")):
        if not place.is_symlink():
            place.chmod(place.stat().st_mode & PRIVATE_FOLDER)


def open_private(path: Path, mode: str, rights: int = PRIVATE_FILE) -> BinaryIO:
    """Open a file for writing ("wb", "ab" or "xb") that only its owner can read."""

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags, rights)

    return open(path, mode, opener=opener)  # type: ignore[return-value]


def write_bytes(path: Path, content: bytes, sync: bool = True, rights: int = PRIVATE_FILE) -> None:
    """Write a file that exists whole or not at all: beside its place, to the disk, renamed."""
    beside = path.with_name(path.name + ".part")
    with open_private(beside, "wb", rights) as file:
        file.write(content)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    if sync:
        move(beside, path)
    else:
        os.replace(beside, path)


def save_arrays(
    path: Path, arrays: Arrays, copy: Path | None = None, rights: int = PRIVATE_FILE
) -> None:
    """Write a sealed npz file that exists whole or not at all; and the same once more as `copy`."""
    content = sealed(arrays)
    write_bytes(path, content, rights=rights)
    if copy is not None:
        write_bytes(copy, content, sync=False)


def sealed(arrays: Arrays) -> bytes:
    """The bytes of an npz file with its seal."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **dict(arrays))
    content = buffer.getvalue()
    seal = _SEAL + hashlib.sha256(content).hexdigest().encode()
    return content[: -len(_NO_COMMENT)] + len(seal).to_bytes(2, "little") + seal


def load_arrays(
    path: str | Path, seal: bool = False, most_bytes: int | None = None
) -> dict[str, Array]:
    """The arrays of an npz file; never an object. With `seal`, a file without one is damaged.

    How large it is, and each array in it, is known from its heads before any of it is read: a file
    of more than `most_bytes` costs no memory, nor does one that claims to hold more than it does.
    """
    place = Path(path)
    if most_bytes is not None and place.stat().st_size > most_bytes:
        raise ValueError(f"{path} holds more than {most_bytes:,} bytes")
    return arrays_in(place.read_bytes(), seal, most_bytes, path)


def arrays_in(
    content: bytes,
    seal: bool = False,
    most_bytes: int | None = None,
    path: str | Path = "what was sent",
) -> dict[str, Array]:
    """The arrays of the bytes of an npz file, with the same care as `load_arrays`."""
    _check_seal(content, seal, path)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
        total = sum(member.file_size for member in members)
        if most_bytes is not None and total > most_bytes:
            raise ValueError(f"{path} holds {total:,} bytes, more than {most_bytes:,}")
        return {
            member.filename.removesuffix(".npy"): _member(archive, member) for member in members
        }


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    """One array of an archive, whose head must say just how many bytes follow."""
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0}.get(
            version, np.lib.format.read_array_header_2_0
        )
        shape, by_columns, dtype = read(file)
        size = math.prod(shape) * dtype.itemsize
        if dtype.hasobject or file.tell() + size != member.file_size:
            raise ValueError(f"{member.filename} does not hold the array that it says")
        content = file.read()
    order: Literal["F", "C"] = "F" if by_columns else "C"
    return np.ndarray(shape, dtype, bytearray(content), order=order)


def _check_seal(content: bytes, required: bool, path: str | Path) -> None:
    seal = content[-_SEAL_LENGTH:]
    if not seal.startswith(_SEAL):
        if required:
            raise ValueError(f"{path} has lost its seal")
        return
    head = content[: -_SEAL_LENGTH - len(_NO_COMMENT)]
    length = content[len(head) : -_SEAL_LENGTH]
    expected = hashlib.sha256(head + _NO_COMMENT).hexdigest().encode()
    if length != _SEAL_LENGTH.to_bytes(2, "little") or seal[len(_SEAL) :] != expected:
        raise ValueError(f"{path} is damaged: its seal does not match")


def move(source: Path, target: Path) -> None:
    """Rename so that a power cut leaves one of the two names, not neither."""
    os.replace(source, target)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def own_salt(folder: Path) -> bytes:
    """The secret of a folder's owner, which makes fingerprints in it of no use to anybody else."""
    path = private_folder(folder) / "salt"
    if not path.exists():
        write_bytes(path, secrets.token_bytes(32))
    return path.read_bytes()


class FolderLock:
    """One process at a time works in a folder; the lock goes with the process that holds it."""

    def __init__(self, folder: Path) -> None:
        self.path = private_folder(folder) / "lock"
        self._file: int | None = None

    def take(self, patience: float = 0.0) -> None:
        """Take the lock, or raise `Locked` if somebody else has it for `patience` seconds."""
        deadline = time.monotonic() + patience
        while True:
            try:
                return self._take()
            except Locked:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(LOCK_POLL)

    def _take(self) -> None:
        held = os.open(self.path, os.O_CREAT | os.O_RDWR, PRIVATE_FILE)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(held)
            raise Locked(
                f"another process works in {self.path.parent}; wait until it has ended, or choose "
                "another folder"
            ) from None
        self._file = held

    def release(self) -> None:
        """Let others in."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> FolderLock:
        self.take()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
