"""The folder that every run leaves: configuration, record, tables, model, journal, report."""

from __future__ import annotations

import platform
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedkin.cli.json_text import json_text
from fedkin.durable import write_bytes
from fedkin.engines import InProcess
from fedkin.engines.journal import Journal

CONFIGURATION, RECORD, MODEL, TABLES = "run.toml", "run.json", "model", "tables"
REPORT = "report.html"
# Fitted numbers that are worth a line of their own, as far as a model has them.
NUMBERS = (
    "n_components_",
    "n_clusters_",
    "n_priors_",
    "sigma_",
    "noise_",
    "loglik_",
    "log_marginal_likelihood_",
    "bic_",
    "aic_",
    "icc_",
    "left_out_loss_",
    "intercept_",
    "converged_",
    "n_rounds_",
    "n_iter_",
)
# Of replies in a journal; on disk they are there twice.
MOST_BYTES = 1_000_000_000
RUN_FILES = {CONFIGURATION, RECORD, MODEL, TABLES, REPORT, "journal", "predictions.csv"}


@dataclass(frozen=True)
class Booked(InProcess):
    """The engine of this process, with a journal of its own for every run of a fit."""

    def run(self, algorithm: Any, settings: Any, federation: Any, seed: int = 0) -> Any:
        """Fit, and keep every message."""
        if self.journal is None:
            return super().run(algorithm, settings, federation, seed)
        folder = Path(self.journal)
        folder.mkdir(parents=True, exist_ok=True)
        number = 1 + sum(1 for _ in folder.iterdir())
        engine = _Bounded(progress=self.progress, journal=folder / f"{number}")
        return engine.run(algorithm, settings, federation, seed)


@dataclass(frozen=True)
class _Bounded(InProcess):
    """The engine of this process, with a journal that does not fill the disk."""

    def _book(self, folder: Path) -> Journal:
        return Journal(folder, MOST_BYTES)


@dataclass(frozen=True)
class RunFolder:
    """A folder of one run."""

    path: Path

    @classmethod
    def new(cls, out: Path | None, method: str) -> RunFolder:
        """The folder asked for, or the next one in fedkin-runs."""
        from fedkin.cli.fitting import RUNS

        if out is None:
            taken = [int(p.name[:4]) for p in RUNS.glob("[0-9][0-9][0-9][0-9]-*")]
            out = RUNS / f"{max(taken, default=0) + 1:04d}-{method}"
        if out.exists() and not out.is_dir():
            raise ValueError(f"{out} is a file; --out names the folder of the run")
        foreign = [p.name for p in out.iterdir() if p.name not in RUN_FILES] if out.exists() else []
        if foreign and not (out / RECORD).exists():
            raise ValueError(f"{out} holds other things ({foreign[0]}); name a new folder")
        for name in (MODEL, TABLES, "journal"):
            if (out / name).is_dir():
                shutil.rmtree(out / name)
        out.mkdir(parents=True, exist_ok=True)
        return cls(out)

    def write(self, model: Any, record: dict[str, Any], configuration: str) -> list[Path]:
        """Configuration, record, model and tables."""
        (self.path / CONFIGURATION).write_text(configuration, encoding="utf-8")
        write_bytes(self.path / RECORD, json_text(record, indent=1).encode())
        model.save(self.path / MODEL)
        (self.path / TABLES).mkdir()
        tables = [
            self._csv(self.path / TABLES / f"{name}.csv", table.to_arrow())
            for name, table in model.summary().tables.items()
        ]
        return [self.path / CONFIGURATION, self.path / RECORD, self.path / MODEL, *tables]

    def write_table(self, name: str, table: Any) -> Path:
        """A table beside the others."""
        return self._csv(self.path / f"{name}.csv", table)

    def write_report(self, model: Any, record: dict[str, Any]) -> Path:
        """The page."""
        from fedkin.report.pages import report

        (self.path / REPORT).write_text(report(model, record), encoding="utf-8")
        return self.path / REPORT

    @staticmethod
    def _csv(path: Path, table: Any) -> Path:
        from pyarrow import csv

        csv.write_csv(table, path)
        return path


def record_of(
    model: Any,
    federation: Any,
    table: Any,
    options: Any,
    warnings: list[str],
    checks: list[str],
    missing: list[str],
) -> dict[str, Any]:
    """What there is to know of a run besides its tables."""
    from fedkin import __version__

    used = model._used.to_mapping() if hasattr(model, "_used") else model.get_params(deep=False)
    encoding = federation.encoding
    return {
        "method": type(model).__name__,
        "settings": {name: _plain(value) for name, value in used.items()},
        "seed": options.seed,
        "data": {
            "file": str(table.data.resolve()),
            "client": table.client,
            "target": table.target if model._uses_target() else None,
            "sites": federation.n_clients,
            "rows": len(federation.X),
            "features": list(federation.feature_names),
            "sizes": federation.sizes.tolist(),
            "encoding": None if encoding is None else encoding.to_json(),
        },
        "numbers": {n.rstrip("_"): _plain(getattr(model, n)) for n in NUMBERS if hasattr(model, n)},
        "odd_sites": [str(name) for name in getattr(model, "odd_sites_", ())],
        "dropped": list(getattr(model, "dropped_", ())),
        "warnings": warnings,
        "checks": checks,
        "missing": missing,
        "versions": {
            "fedkin": __version__,
            "python": platform.python_version(),
            **{name: _version(name) for name in ("numpy", "scipy", "scikit-learn")},
        },
    }


def _version(name: str) -> str:
    from importlib.metadata import version

    return version(name)


def _plain(value: Any) -> Any:
    """A value as JSON has it; what is long or no number is told in words."""
    if isinstance(value, np.ndarray):
        return value.tolist() if value.size <= 1000 else f"array of shape {value.shape}"
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def find_model(place: Path) -> tuple[Path, dict[str, Any] | None]:
    """The model of a run, or the folder itself; and the run's record if there is one."""
    import json

    if (place / MODEL / "model.json").is_file():
        record = place / RECORD
        told = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else None
        return place / MODEL, told
    return place, None
