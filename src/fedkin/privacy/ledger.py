"""The ledger: a site's own record of everything that left it, written before it leaves.

One line of JSON per reply (when, which round and step, which named arrays, how large, a digest)
and, beside it, the very numbers. Nothing here is ever sent anywhere.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from fedkin.arrays import Array, Arrays
from fedkin.durable import load_arrays, open_private, private_folder, sealed
from fedkin.protocol import Reason, Schema

# What every line of the ledger has.
_WRITTEN = {"time", "run", "round", "step", "sites", "withheld", "fields"}
_FACTS = {"dtype", "shape", "numbers", "bytes", "sha256"}
# Files of numbers beside the ledger.
VALUES_NAME = re.compile(r"[0-9]{8,}\.npz")
# The folder inside a ledger's with what would have left in dry runs.
DRY_RUN = "dry-run"


class Ledger:
    """What left a site, as an append-only record in a folder of the site's own."""

    def __init__(self, folder: str | Path, keep_values: bool = True) -> None:
        self.folder = Path(folder)
        self.keep_values = keep_values
        private_folder(self.folder)
        self._n_values = sum(1 for _ in self.folder.glob("*.npz"))

    def record(
        self,
        run: str,
        round: int,
        step: str,
        sites: Sequence[str],
        arrays: Arrays,
        withheld: Reason | None = None,
        story: str = "",
    ) -> None:
        """Write down one reply of a site (or of several); one that is `withheld` did not leave.

        `story` says more about why, for the site itself.
        """
        entry: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "run": run,
            "round": round,
            "step": step,
            "sites": list(sites),
            "withheld": None if withheld is None else withheld.name,
            "fields": {name: _described(array) for name, array in arrays.items()},
        }
        if story:
            entry["story"] = story
        if self.keep_values and withheld is None:
            entry["values"] = self._keep(arrays)
        with open_private(self.folder / "ledger.jsonl", "ab") as file:
            file.write(self._fresh_line() + json.dumps(entry).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _fresh_line(self) -> bytes:
        """A line break if the last line was cut short by a crash, so that it spoils no other."""
        path = self.folder / "ledger.jsonl"
        if not path.exists() or not path.stat().st_size:
            return b""
        with open(path, "rb") as file:
            file.seek(-1, os.SEEK_END)
            return b"" if file.read(1) == b"\n" else b"\n"

    def _keep(self, arrays: Arrays) -> str:
        """Write the numbers under the next free name, also beside another process."""
        while True:
            self._n_values += 1
            name = f"{self._n_values:08d}.npz"
            try:
                with open_private(self.folder / name, "xb") as file:
                    file.write(sealed(arrays))
                return name
            except FileExistsError:
                continue

    def lines(self) -> list[dict[str, Any]]:
        """All entries, oldest first; a line cut short by a crash is passed over."""
        return [entry for entry in self._read() if entry is not None]

    def n_damaged(self) -> int:
        """How many lines cannot be read: what they say left is not in `lines`."""
        return sum(entry is None for entry in self._read())

    def _read(self) -> list[dict[str, Any] | None]:
        """What every line says; None of one that is damaged."""
        path = self.folder / "ledger.jsonl"
        if not path.exists():
            return []
        text = path.read_text(encoding="utf-8", errors="replace")
        return [_entry(line) for line in text.splitlines()]

    def values(self, entry: Mapping[str, Any]) -> dict[str, Array]:
        """The numbers of one entry; none if it was withheld or values are not kept."""
        if "values" not in entry:
            return {}
        name = str(entry["values"])
        if not VALUES_NAME.fullmatch(name):
            raise ValueError(f"the ledger names {name!r}, which is no file of its own: damaged")
        return load_arrays(self.folder / name, seal=True)

    def account(
        self, site: str | None = None, schema: Schema | None = None
    ) -> dict[str, dict[str, Any]]:
        """What left, by field: how often, how many numbers and bytes, and what they mean."""
        totals: dict[str, dict[str, Any]] = {}
        for entry in self.lines():
            if entry["withheld"] or (site is not None and site not in entry["sites"]):
                continue
            share = 1 if site is None else len(entry["sites"])
            for name, facts in entry["fields"].items():
                row = totals.setdefault(name, {"messages": 0, "numbers": 0, "bytes": 0})
                row["messages"] += len(entry["sites"]) if site is None else 1
                row["numbers"] += facts["numbers"] // share
                row["bytes"] += facts["bytes"] // share
                if schema and name in schema:
                    row["meaning"] = schema[name].meaning
        return totals


def _entry(line: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if _whole(entry) else None


def _whole(entry: Any) -> bool:
    """Whether an entry is as it was written; a damaged one tells nothing."""
    if not isinstance(entry, dict) or not set(entry) >= _WRITTEN:
        return False
    fields, sites = entry["fields"], entry["sites"]
    if not isinstance(fields, dict) or not isinstance(sites, list) or not sites:
        return False
    facts = all(isinstance(one, dict) and set(one) >= _FACTS for one in fields.values())
    return facts and all(
        isinstance(one[name], int) for one in fields.values() for name in ("numbers", "bytes")
    )


def _described(array: Array) -> dict[str, Any]:
    return {
        "dtype": str(array.dtype),
        "shape": list(array.shape),
        "numbers": int(array.size),
        "bytes": int(array.nbytes),
        "sha256": hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest(),
    }
