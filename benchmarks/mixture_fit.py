"""A whole FedGrEM fit of the pen digits against scikit-learn's GaussianMixture fitted per writer.

    OMP_NUM_THREADS=1 python benchmarks/mixture_fit.py

44 writers, 10 groups, whitened coordinates, 10 starts a writer. NOT the same work: FedGrEM has one
fixed covariance, fits alone and then together; GaussianMixture (spherical) fits alone, with a
variance for each group, from 10 k-means starts. CPU time, median of interleaved repeats.
"""

from __future__ import annotations

import time
import warnings

import numpy as np

from fedkin import FedGrEM, Standardizer
from fedkin.datasets import load_pendigits

REPEATS = 3


def federated(data):
    return FedGrEM(10, random_state=0).fit(data)


def federated_ward(data):
    return FedGrEM(10, init="ward", random_state=0).fit(data)


def per_writer(data):
    from sklearn.mixture import GaussianMixture

    for k in range(data.n_clients):
        GaussianMixture(10, covariance_type="spherical", n_init=10, random_state=0).fit(
            data.client(k)[0]
        )


def main():
    plain = load_pendigits().federation()
    data = Standardizer(whiten=True, n_groups=10).fit(plain).transform(plain)
    work = {
        "FedGrEM": federated,
        "FedGrEM from Ward clusters": federated_ward,
        "scikit-learn per writer": per_writer,
    }
    times = {name: [] for name in work}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(REPEATS):
            for name, function in work.items():
                begin = time.process_time()
                function(data)
                times[name].append(time.process_time() - begin)
    base = np.median(times["FedGrEM"])
    print(f"whole fit, {data.n_clients} writers, {len(data.X)} rows, CPU seconds")
    for name, spent in times.items():
        print(f"  {name:<28}{np.median(spent):8.2f} {np.median(spent) / base:6.1f} x")


if __name__ == "__main__":
    main()
