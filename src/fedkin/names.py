"""What a site is called: one text per site, one order everywhere."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkin.arrays import Array, Indices

# Columns of which a sentence each is told; of more, one sentence for all.
FEW_COLUMNS = 3
NO_NAME = "row {} has no site name; fill it in or drop the row"
TWO_SPELLINGS = "two spellings of one site name {!r} (spaces?); make them equal"


def canonical_name(value: object) -> str:
    """The text by which a site is known everywhere: 3, 3.0 and '3' all become '3'.

    'nan' is what a missing name turns into when names become text, so it names nobody.
    """
    if isinstance(value, bytes):
        value = value.decode()
    if value is None or (isinstance(value, float | np.floating) and np.isnan(value)):
        raise ValueError("a site has no name")
    if isinstance(value, float | np.floating) and float(value).is_integer():
        value = int(value)
    name = str(value).strip()
    if not name or name in {"nan", "NaT", "<NA>"}:
        raise ValueError("a site has an empty name")
    return name


def name_order(name: str) -> tuple[Any, ...]:
    """Sort key that puts 'site-2' before 'site-10'; the name itself breaks ties."""
    parts = re.split(r"(\d+)", name)
    return (*((int(p), "") if i % 2 else (-1, p) for i, p in enumerate(parts)), (0, name))


def file_name(name: str) -> str:
    """What a site's files are called, whatever its name: no folders, no two sites alike."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".")[:80]
    if plain == name:
        return plain
    return f"{plain}-{hashlib.blake2b(name.encode(), digest_size=4).hexdigest()}"


def site_of_row(row: int, value: object) -> str:
    """The canonical name of a row's site, or an error that names the row."""
    try:
        return canonical_name(value)
    except ValueError:
        raise ValueError(NO_NAME.format(row + 1)) from None


def _names_of_rows(values: list[Any]) -> list[str]:
    """Canonical names of the rows' sites; those that have none are told all at once."""
    texts, nameless = [], []
    for i, value in enumerate(values):
        try:
            texts.append(canonical_name(value))
        except ValueError:
            nameless.append(i + 1)
    if len(nameless) > 1:
        others = "nor has 1 other" if len(nameless) == 2 else f"nor have {len(nameless) - 1} others"
        raise ValueError(
            f"row {nameless[0]} has no site name, {others}; fill them in or drop these rows"
        )
    if nameless:
        raise ValueError(NO_NAME.format(nameless[0]))
    return texts


def site_labels(groups: Any) -> Array:
    """Site names as they were given, in an array.

    NumPy would turn a list of mixed values into text and with it a missing name into 'nan' and 1
    into '1'; what is no array stays as it is, to be judged by one rule.
    """
    labels = np.asarray(groups)
    if hasattr(groups, "dtype") or labels.ndim != 1 or labels.dtype.kind in "iu":
        return labels
    given = np.empty(len(labels), dtype=object)
    given[:] = list(groups)
    return given


def canonical_names(labels: Array) -> NDArray[np.object_]:
    """The canonical name of every row's site, whatever its spelling."""
    known: dict[Any, str] = {}
    texts = np.empty(len(labels), dtype=object)
    for i, value in enumerate(labels.tolist()):
        key = (type(value), value)  # True and 1 are equal, but not one name
        if key not in known:
            known[key] = site_of_row(i, value)
        texts[i] = known[key]
    return texts


def name_codes(labels: Array) -> tuple[tuple[str, ...], Indices]:
    """Canonical names in canonical order, and every row's position among them.

    A site spelt in two ways ('A' and 'A ', 1 and '1') is refused rather than merged: it may be
    two sites.
    """
    if labels.dtype.kind in "iu" and len(labels) and labels.min() >= 0:
        distinct, codes = np.unique(labels, return_inverse=True)
        return tuple(map(str, distinct.tolist())), codes
    if labels.dtype.kind == "O" or labels.dtype.kind == "f":
        texts = _names_of_rows(labels.tolist())
        clash = _two_spellings(labels.tolist(), texts)
        if clash:
            raise ValueError(clash)
        labels = np.array(texts)
    distinct, codes = np.unique(labels, return_inverse=True)
    names = [site_of_row(int(np.argmax(codes == i)), v) for i, v in enumerate(distinct.tolist())]
    if len(set(names)) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise ValueError(TWO_SPELLINGS.format(twice))
    order = sorted(range(len(names)), key=lambda i: name_order(names[i]))
    position = np.empty(len(names), dtype=np.intp)
    position[order] = np.arange(len(names))
    return tuple(names[i] for i in order), position[codes]


def _two_spellings(values: list[Any], texts: list[str]) -> str | None:
    """A complaint if '1' and 1 name the same site, or 'A' and 'A '."""
    spellings: dict[str, str | None] = {}
    for value, text in zip(values, texts):
        value = value.decode() if isinstance(value, bytes) else value
        spelling = value if isinstance(value, str) else None
        first = spellings.setdefault(text, spelling)
        if first == spelling:
            continue
        if first is None or spelling is None:
            return f"site {text!r} is named by a number in some rows and by text in others; use one"
        return TWO_SPELLINGS.format(text)
    return None


def listed(names: Any, shown: int = 10) -> str:
    """Names, quoted, for a sentence: the first ones, and how many more there are."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(repr(name) for name in names[:shown]) + more


def constant_at_all(columns: list[str]) -> list[str]:
    """Columns that vary within no site for a sentence each; of many, one sentence."""
    if len(columns) <= FEW_COLUMNS:
        return [f"column {name!r} is constant within every site" for name in columns]
    return [
        f"{len(columns)} columns are constant within every site: {listed(columns, FEW_COLUMNS)}"
    ]


def constant_at_some(columns: Mapping[str, list[str]]) -> list[str]:
    """Columns (with the sites at which they do not vary) for a sentence; of many, one sentence."""
    if len(columns) <= FEW_COLUMNS:
        return [
            f"column {name!r} is constant at site {listed(sites)}"
            if len(sites) == 1
            else f"column {name!r} is constant at {len(sites)} sites, for example "
            f"{listed(sites, 3)}"
            for name, sites in columns.items()
        ]
    often = sorted(columns, key=lambda name: -len(columns[name]))
    shown = ", ".join(f"{name!r} at {len(columns[name])}" for name in often[:FEW_COLUMNS])
    more = f" and {len(often) - FEW_COLUMNS} more"
    return [f"{len(columns)} columns are constant at some sites: {shown}{more}"]


def counted(number: int, noun: str) -> str:
    """A number of things in words: '1 site', '2 sites'."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def sites_listed(names: Any) -> str:
    """Names of sites, with how many they are, for a sentence."""
    return f"{len(names)} sites: {listed(names)}" if len(names) > 1 else f"site {listed(names)}"
