"""Files that exist whole or not at all."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

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
    zipfile.BadZipFile,
    zlib.error,
)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file that exists whole or not at all."""
    _write(path, lambda file: file.write(content))


def save_arrays(path: Path, arrays: Arrays) -> None:
    """Write an npz file that exists whole or not at all."""
    _write(path, lambda file: np.savez(file, **dict(arrays)))  # type: ignore[arg-type]


def load_arrays(path: str | Path) -> dict[str, Array]:
    """The arrays of an npz file; never an object."""
    with np.load(path, allow_pickle=False) as stored:
        return dict(stored)


def move(source: Path, target: Path) -> None:
    """Rename so that a power cut leaves one of the two names, not neither."""
    os.replace(source, target)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _write(path: Path, fill: Callable[[IO[bytes]], Any]) -> None:
    """Write beside the place, flush to disk, rename."""
    beside = path.with_suffix(".part")
    with open(beside, "wb") as file:
        fill(file)
        file.flush()
        os.fsync(file.fileno())
    move(beside, path)
