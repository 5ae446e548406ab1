"""Pen digits of 44 writers, none of them labelled; fedgrem_*.csv and verdicts.

make accept        (or: python -m benchmarks.accept.pen_digits [pen_digits learning_curve])

80/20 splits of every writer's digits; test errors in per cent, with a matching of groups to digits
per writer and with one for all. Contaminated writers have their features permuted.
"""

from __future__ import annotations

import sys

import numpy as np

from benchmarks.accept.kept import parallel, quietly, verdict, write
from fedkin import TGMM, FedEM, FedGrEM, LocalEM, PooledEM, Standardizer
from fedkin.datasets import load_pendigits
from reproduction.mixture_protocol import contaminate, matched_errors, split_sites

DIGITS = 10
TIED = {"covariance_type": "tied", "init": "ward", "max_rounds": 500}


def pen_models(seed):
    common = {"random_state": seed}
    white, plain = Standardizer(whiten=True, n_groups=DIGITS), Standardizer()
    models = {
        "FedGrEM tied, Ward, z-scores": (plain, FedGrEM(DIGITS, **TIED, **common)),
        "FedGrEM, Ward, whitened": (white, FedGrEM(DIGITS, init="ward", **common)),
        "FedGrEM, k-means++, whitened (recommended)": (white, FedGrEM(DIGITS, **common)),
        "FedGrEM paper, Ward, whitened": (
            white,
            FedGrEM(DIGITS, init="ward", shrinkage="paper", max_rounds=500, **common),
        ),
        "FedGrEM, Ward, z-scores": (plain, FedGrEM(DIGITS, init="ward", **common)),
        "LocalEM, Ward, whitened": (white, LocalEM(DIGITS, init="ward", **common)),
        "LocalEM tied, Ward, z-scores": (
            plain,
            LocalEM(DIGITS, init="ward", covariance_type="tied", **common),
        ),
        "FedEM plain, Ward, whitened": (white, FedEM(DIGITS, init="ward", **common)),
        "FedEM pooled, Ward, whitened": (
            white,
            FedEM(DIGITS, init="ward", average="pooled", **common),
        ),
        "TGMM, Ward, whitened": (white, TGMM(DIGITS, init="ward", **common)),
        "PooledEM, k-means++, whitened": (white, PooledEM(DIGITS, **common)),
    }
    return models


def one_pen_fit(name, seed, n_train, n_bad):
    data = load_pendigits()
    scaler, model = pen_models(seed)[name]
    groups = data.writer_names
    train, test = split_sites(groups, seed, n_train)
    X, bad = contaminate(data.X.astype(float), groups, n_bad, seed)
    test &= ~bad
    scaler.set_params(robust=bool(n_bad))
    if scaler.whiten and n_train:  # groups of less than two digits have no scatter
        scaler.set_params(n_groups=min(DIGITS, n_train // 2))
    quietly(scaler.fit, X[train], None, groups[train])
    quietly(model.fit, scaler.transform(X[train]), None, groups[train])
    found = model.predict(scaler.transform(X[test]), groups=groups[test])
    return (
        *matched_errors(found, data.digit[test], data.writer[test]),
        model.n_rounds_,
        model.ambiguous_.sum(),
    )


def pen_digits() -> None:
    rows = []
    for n_bad in (0, 9):
        for name in pen_models(0):
            table = np.array(
                parallel(one_pen_fit, [(name, seed, None, n_bad) for seed in range(5)])
            )
            each, one, rounds, doubt = table.mean(axis=0)
            rows.append(
                {
                    "setting": name,
                    "contaminated_writers": n_bad,
                    "error_matching_per_writer": f"{each:.2f}",
                    "sd": f"{table[:, 0].std(ddof=1):.2f}",
                    "error_one_matching": f"{one:.2f}",
                    "rounds": f"{rounds:.1f}",
                    "ambiguous_writers": f"{doubt:.1f}",
                }
            )
            if "(recommended)" in name:
                bad = f"{n_bad} writers with features permuted: " if n_bad else ""
                verdict(f"pen digits, {bad}test error {each:.2f} % (<= 6)", each <= 6.0)
                verdict(f"pen digits, {bad}one matching: {one:.2f} % (<= 20)", one <= 20.0)
            else:
                print(f"        {name}, {n_bad} bad: {each:.2f} %, one matching {one:.2f} %")
        write("fedgrem_pen_digits", rows)


def learning_curve() -> None:
    """Test errors from few digits a writer; the rest of the training part is not looked at."""
    rows = []
    chosen = [
        name
        for name in pen_models(0)
        if "(recommended)" in name or name.startswith(("FedGrEM tied", "LocalEM", "FedEM plain"))
    ]
    for n_train in (10, 20, 40, 80, 160):
        for name in chosen:
            tasks = [(name, seed, n_train, 0) for seed in range(5)]
            table = np.array(parallel(one_pen_fit, tasks))
            each, one = table[:, :2].mean(axis=0)
            rows.append(
                {
                    "digits_a_writer": n_train,
                    "setting": name,
                    "error_matching_per_writer": f"{each:.2f}",
                    "sd": f"{table[:, 0].std(ddof=1):.2f}",
                    "error_one_matching": f"{one:.2f}",
                }
            )
            print(f"        {n_train} digits, {name}: {each:.2f} %, one matching {one:.2f} %")
    write("fedgrem_learning_curve", rows)


PARTS = {"pen_digits": pen_digits, "learning_curve": learning_curve}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
