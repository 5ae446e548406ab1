"""Estimators give the same answer on another processor, also where several answers are as good."""

import subprocess
import sys

import numpy as np
import pytest

from fedkin import FGPR, FMLR, IFCA, ODCL, FedEM, FedGrEM, LocalEM
from fedkin.federation import Federation

TOLERANCE = 1e-6
# The most foreign of all, and with another number of threads.
FOREIGN = "prescott-2"


def sites_of_three_kinds():
    """Four sites of each kind: the groups' weights are equal, so only ties order them."""
    rng = np.random.default_rng(1)
    owner = np.repeat(np.arange(12), 20)
    coef = 3.0 * rng.normal(size=(3, 4))
    X = rng.normal(size=(len(owner), 4))
    y = (X * coef[owner % 3]).sum(axis=1) + 0.3 * rng.normal(size=len(owner))
    return Federation.from_groups(X, owner, y)


def groups_inside_sites():
    """Three clouds at each site, all with the same number in the first column."""
    rng = np.random.default_rng(2)
    owner = np.repeat(np.arange(10), 60)
    kind = np.arange(len(owner)) % 3
    cloud = 4.0 * rng.normal(size=(3, 2))[kind] + rng.normal(size=(len(owner), 2))
    return Federation.from_groups(np.column_stack([np.full(len(owner), 0.1), cloud]), owner)


def curves():
    """Smooth curves at half of the sites, wiggly ones at the other half."""
    rng = np.random.default_rng(3)
    owner = np.repeat(np.arange(8), 20)
    X = rng.uniform(-2.0, 2.0, size=(len(owner), 1))
    y = np.sin((1.0 + 5.0 * (owner % 2)) * X[:, 0] + owner)
    return Federation.from_groups(X, owner, y + 0.1 * rng.normal(size=len(owner)))


FITS = {
    "FMLR": lambda: FMLR(max_components=4, random_state=0).fit(sites_of_three_kinds()),
    "FMLR-sums": lambda: FMLR(3, share="sums", random_state=0).fit(sites_of_three_kinds()),
    "ODCL": lambda: ODCL(random_state=0).fit(sites_of_three_kinds()),
    "ODCL-convex": lambda: ODCL(clustering="convex", random_state=0).fit(sites_of_three_kinds()),
    "IFCA": lambda: IFCA(3, random_state=0).fit(sites_of_three_kinds()),
    "FedGrEM": lambda: FedGrEM(3, random_state=0).fit(groups_inside_sites()),
    "FedEM": lambda: FedEM(3, random_state=0).fit(groups_inside_sites()),
    "LocalEM": lambda: LocalEM(3, random_state=0).fit(groups_inside_sites()),
    "FGPR": lambda: FGPR(n_priors=2, random_state=0).fit(curves()),
}


def answers():
    """Every fitted attribute that is an array of numbers, by estimator and name."""
    found = {}
    for estimator, fit in FITS.items():
        for name, value in vars(fit()).items():
            if name.endswith("_") and isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
                found[f"{estimator}/{name}"] = value
    return found


def answers_under(environment, path):
    """The answers of another process."""
    command = [sys.executable, __file__, str(path)]
    subprocess.run(command, env=environment, check=True, timeout=300)
    with np.load(path) as stored:
        return dict(stored)


def test_two_kernels_give_the_same_models_and_labels(tmp_path):
    from tests.portable import KERNELS, own_environment

    if not KERNELS[FOREIGN].possible():
        pytest.skip("kernels of other processors are of x86-64")
    here = answers_under(own_environment(), tmp_path / "here.npz")
    there = answers_under(KERNELS[FOREIGN].environment(), tmp_path / "there.npz")
    assert here.keys() == there.keys()
    assert {name.split("/")[0] for name in here} == set(FITS)
    assert any((here[name] != there[name]).any() for name in here), "no kernel was changed"
    for name, array in here.items():
        close = TOLERANCE if array.dtype.kind == "f" else 0.0
        np.testing.assert_allclose(there[name], array, rtol=close, atol=close, err_msg=name)


if __name__ == "__main__":
    np.savez(sys.argv[1], **answers())
