"""Rounds between real NVIDIA FLARE sites with mutual TLS on 127.0.0.1: how long does one take?

    python -m benchmarks.flare                          200 rounds on three sites
    python -m benchmarks.flare --sites 20 --rounds 50

One run of FedGrEM for as many rounds as it may have, and a few more for its start. A round is over
when its record is in the server's journal, on disk; the times between records are told. Ends with 1
if three sites have a median above what is promised of them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from fedkin import FedGrEM
from fedkin.engines.nvflare import Deployment, Flare, provision

N_ROWS, N_GROUPS = 60, 2
MOST_MEDIAN = 0.150
RUN = "rounds"


def hand_out(folder: Path, n_sites: int) -> dict[str, dict[str, object]]:
    """Two groups at every site, in a file; they overlap, so that a fit is long."""
    rng = np.random.default_rng(0)
    sites: dict[str, dict[str, object]] = {}
    for k in range(n_sites):
        label = rng.integers(N_GROUPS, size=N_ROWS)
        X = rng.normal(size=(N_ROWS, 2)) + label[:, None]
        np.savez(folder / f"site-{k:02d}.npz", X=X)
        sites[f"site-{k:02d}"] = {"data": folder / f"site-{k:02d}.npz", "disclosure": False}
    return sites


def seconds_of_rounds(folder: Path, n_sites: int, n_rounds: int) -> np.ndarray:
    """Times between the records of successive rounds."""
    sites = hand_out(folder, n_sites)
    with Deployment(provision(folder / "kits", tuple(sites)), sites) as running:
        engine = Flare(running, run_id=RUN, checks=None)
        # Without tolerance the run is as long as it may be.
        model = FedGrEM(N_GROUPS, tol=0.0, max_rounds=n_rounds, random_state=0, engine=engine)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit()
        records = sorted((running.server_folder / "runs" / RUN).glob("round-*.npz"))
        return np.diff([record.stat().st_mtime_ns for record in records]) / 1e9


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args(arguments)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        seconds = seconds_of_rounds(Path(folder), options.sites, options.rounds)
    median, late = 1e3 * np.quantile(seconds, [0.5, 0.95])
    print(
        f"{options.sites} sites, {len(seconds) + 1} rounds: median round {median:.0f} ms, 95 % "
        f"below {late:.0f} ms; {time.monotonic() - begin:.0f} s in all, with kits and start"
    )
    return int(options.sites == 3 and median > 1e3 * MOST_MEDIAN)


if __name__ == "__main__":
    sys.exit(main())
