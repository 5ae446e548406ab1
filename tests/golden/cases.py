"""Named small fits of every public estimator, written against the public interface alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from fedkin import estimators
from fedkin.estimators import (
    FGPR,
    FMLR,
    IFCA,
    ODCL,
    TGMM,
    ClusterOracle,
    CoKriging,
    FedAvgNetwork,
    FedAvgPolynomial,
    FedEM,
    FedGMM,
    FedGrEM,
    LocalEM,
    LocalERM,
    LocalGP,
    NaiveAveraging,
    OracleAveraging,
    PooledEM,
    PooledGP,
    Standardizer,
)
from fedkin.federation import Federation

# X (n, d), y (n,) and the name of the site of each row, (n,).
Rows = tuple[np.ndarray, np.ndarray, np.ndarray]

KINDS = np.array([[2.0, -1.0, 0.5, 1.0], [-1.5, 1.5, 2.0, -1.0]])  # intercept last
# One kind is more frequent: components are sorted by weight, equal weights thus by rounding.
KIND_OF_SITE = np.array([0, 1, 0, 1, 0, 1, 0, 0, 1, 1])
TRUE_KIND = KIND_OF_SITE[:8].tolist()
GROUP_CENTERS = np.array([[-2.0, -1.0], [2.0, 1.5]])
GROUP_COEF = np.array([[3.0, 1.0], [-2.0, 2.0]])

# ---------------------------------------------------------------- federations


def _ragged(rng: np.random.Generator, n_sites: int) -> np.ndarray:
    """The site of each row: 15 to 40 rows a site, in no order."""
    sizes = rng.integers(15, 41, size=n_sites)
    names = np.repeat([f"site-{k + 1}" for k in range(n_sites)], sizes)
    return rng.permutation(names)


def _number(sites: np.ndarray) -> np.ndarray:
    return np.array([int(name.removeprefix("site-")) - 1 for name in sites])


@cache
def sites_of_two_kinds(odd: bool = False) -> Rows:
    """Eight sites, each with one of two linear regressions; `odd`: two more, one of noise alone."""
    rng = np.random.default_rng(11)
    sites = _ragged(rng, 10 if odd else 8)
    X = rng.normal(size=(len(sites), 3))
    coef = KINDS[KIND_OF_SITE[_number(sites)]]
    y = (X * coef[:, :3]).sum(axis=1) + coef[:, 3] + 0.5 * rng.normal(size=len(sites))
    if odd:
        last = sites == "site-10"
        y[last] = 20.0 + 8.0 * rng.normal(size=last.sum())
    return X, y, sites


@cache
def classes_of_two_kinds() -> Rows:
    """Eight sites, each with one of two logistic regressions; the classes are words."""
    rng = np.random.default_rng(12)
    sites = _ragged(rng, 8)
    X = rng.normal(size=(len(sites), 3))
    coef = 2.0 * KINDS[KIND_OF_SITE[_number(sites)]]
    odds = (X * coef[:, :3]).sum(axis=1) + coef[:, 3]
    yes = rng.random(len(sites)) < 1 / (1 + np.exp(-odds))
    return X, np.where(yes, "yes", "no"), sites


@cache
def groups_inside_sites(odd: bool = False) -> Rows:
    """Six sites with two clouds of rows each, a little elsewhere at each site."""
    rng = np.random.default_rng(13)
    sites = _ragged(rng, 6)
    place = _number(sites)
    centers = GROUP_CENTERS + 0.3 * rng.normal(size=(6, 2, 2))
    if odd:
        centers[5] += np.array([9.0, -9.0])
    group = (rng.random(len(sites)) < np.linspace(0.35, 0.65, 6)[place]).astype(int)
    X = centers[place, group] + rng.normal(size=(len(sites), 2))
    return X, np.zeros(len(sites)), sites


@cache
def regressions_inside_sites() -> Rows:
    """Six sites whose rows follow one of two regressions, a little different at each site."""
    rng = np.random.default_rng(14)
    sites = _ragged(rng, 6)
    place = _number(sites)
    coef = GROUP_COEF + 0.2 * rng.normal(size=(6, 2, 2))
    group = (rng.random(len(sites)) < 0.45).astype(int)
    X = rng.normal(size=(len(sites), 2)) + 1.5 * (2 * group - 1)[:, None] * np.array([1.0, 0.0])
    y = (X * coef[place, group]).sum(axis=1) + 0.5 + 0.4 * rng.normal(size=len(sites))
    return X, y, sites


@cache
def curves(n_sites: int = 5, rough: bool = False) -> Rows:
    """Sites with a smooth curve each; `rough`: every other site with a wiggly one."""
    rng = np.random.default_rng(22 if rough else 15)
    sites = _ragged(rng, n_sites)
    place = _number(sites)
    X = rng.uniform(-2, 2, size=(len(sites), 2))
    phase = rng.uniform(0, 1, size=n_sites)[place]
    speed = np.where(rough & (place % 2 == 1), 4.0, 1.2)
    y = np.sin(speed * X[:, 0] + phase) + 0.5 * np.cos(speed * X[:, 1]) + 0.3 * place
    return X, y + 0.15 * rng.normal(size=len(sites)), sites


@cache
def levels() -> Rows:
    """Four fidelities of one function, chosen so that their fit is well determined."""
    rng = np.random.default_rng(18)
    sites = _ragged(rng, 4)
    place = _number(sites)
    X = rng.uniform(-2, 2, size=(len(sites), 2))
    base = np.sin(1.5 * X[:, 0]) + np.sin(1.2 * X[:, 1])
    y = base * (1 + 0.2 * place) + 0.3 * place * np.cos(2 * X[:, 1] + X[:, 0])
    return X, y + 0.1 * rng.normal(size=len(sites)), sites


def two_levels() -> Rows:
    """The two cheapest fidelities."""
    X, y, sites = levels()
    kept = _number(sites) < 2
    return X[kept], y[kept], sites[kept]


def with_an_empty_site(rows: Rows) -> Federation:
    """The same sites and one that has no rows."""
    X, y, sites = rows
    clients = {name: (X[sites == name], y[sites == name]) for name in np.unique(sites)}
    return Federation.from_clients({**clients, "void": (np.zeros((0, X.shape[1])), np.zeros(0))})


# ---------------------------------------------------------------- fits


def on(rows: Callable[[], Rows], estimator: Any, y: bool = True) -> Callable[[], Any]:
    """A fit of a copy of this estimator to these rows."""

    def fit() -> Any:
        X, target, sites = rows()
        fresh = type(estimator)(**estimator.get_params(deep=False))
        return fresh.fit(X, target if y else None, groups=sites)

    return fit


def on_federation(rows: Callable[[], Rows], estimator: Any) -> Callable[[], Any]:
    """A fit to a Federation of these rows and one empty site."""

    def fit() -> Any:
        fresh = type(estimator)(**estimator.get_params(deep=False))
        return fresh.fit(with_an_empty_site(rows()))

    return fit


def linear(estimator: Any) -> Callable[[], Any]:
    """A fit to sites of two kinds."""
    return on(lambda: sites_of_two_kinds(), estimator)


def logistic(estimator: Any) -> Callable[[], Any]:
    """A fit to classes of two kinds."""
    return on(lambda: classes_of_two_kinds(), estimator.set_params(loss="logistic"))


def clouds(estimator: Any) -> Callable[[], Any]:
    """A fit to clouds inside sites, which have no target."""
    return on(lambda: groups_inside_sites(), estimator, y=False)


def mixed(estimator: Any) -> Callable[[], Any]:
    """A fit to regressions inside sites."""
    return on(lambda: regressions_inside_sites(), estimator.set_params(family="regression"))


def smooth(estimator: Any) -> Callable[[], Any]:
    """A fit to curves."""
    return on(lambda: curves(), estimator)


def rough(estimator: Any) -> Callable[[], Any]:
    """A fit to curves of which every other is wiggly."""
    return on(lambda: curves(6, rough=True), estimator)


def odd_linear(estimator: Any) -> Callable[[], Any]:
    """A fit to sites of two kinds and an odd one."""
    return on(lambda: sites_of_two_kinds(odd=True), estimator)


# FMLR as its paper has it.
PRINTED: Any = {"degrees": False, "site_noise": "common"}
KERNEL = ConstantKernel(1.0) * RBF(1.0) + WhiteKernel(0.1)
START = KINDS + 0.5 * np.array([[1.0, -1.0, 1.0, 0.0], [0.0, 1.0, -1.0, 1.0]])
LABELS_BY_NAME = {f"site-{k + 1}": kind for k, kind in enumerate(TRUE_KIND)}

GROUPED_REGRESSIONS = {
    "fmlr-statistics": linear(FMLR(2, random_state=1, **PRINTED)),
    "fmlr-chosen": linear(FMLR(max_components=3, random_state=1, **PRINTED)),
    "fmlr-sums": linear(FMLR(2, share="sums", n_restarts=4, random_state=1)),
    "fmlr-sums-chosen": linear(
        FMLR(share="sums", max_components=3, n_restarts=3, max_rounds=60, random_state=3)
    ),
    "fmlr-sums-fraction": linear(
        FMLR(2, share="sums", fraction=0.6, init=START, max_rounds=25, tol=0, random_state=2)
    ),
    "fmlr-sums-spectral": linear(
        FMLR(2, share="sums", init="spectral", n_restarts=2, random_state=1)
    ),
    "fmlr-robust": odd_linear(FMLR(2, robust=True, random_state=1, **PRINTED)),
    "fmlr-robust-sums": odd_linear(
        FMLR(2, robust=True, share="sums", n_restarts=4, random_state=1)
    ),
    "fmlr-odd-site": odd_linear(FMLR(2, random_state=1, **PRINTED)),
    "fmlr-paper": linear(FMLR(2, sigma=0.5, weights="uniform", init=START, random_state=1)),
    "fmlr-ridge": linear(FMLR(2, init="ridge", fit_intercept=False, random_state=1, **PRINTED)),
    "fmlr-spectral": linear(FMLR(2, init="spectral", random_state=1, **PRINTED)),
    "fmlr-empty-site": on_federation(sites_of_two_kinds, FMLR(2, random_state=1, **PRINTED)),
    "fmlr-sums-empty-site": on_federation(
        sites_of_two_kinds, FMLR(2, share="sums", n_restarts=2, random_state=1)
    ),
}

CLUSTERED = {
    "odcl-kmeans": linear(ODCL(2, aggregate="mean", random_state=1)),
    "odcl-chosen": linear(ODCL(aggregate="mean", random_state=1)),
    "odcl-silhouette": linear(ODCL(send="model", max_clusters=4, random_state=1)),
    "odcl-spectral": linear(ODCL(2, clustering="spectral", aggregate="mean", random_state=1)),
    "odcl-spectral-part-one": linear(
        ODCL(2, clustering="spectral_part_one", aggregate="mean", random_state=1)
    ),
    "odcl-gradient": linear(ODCL(2, clustering="gradient", aggregate="mean", random_state=1)),
    "odcl-huber": linear(ODCL(2, clustering="huber", aggregate="mean", random_state=1)),
    "odcl-convex": linear(ODCL(clustering="convex", aggregate="mean", random_state=1)),
    "odcl-convex-two": linear(ODCL(2, clustering="convex", aggregate="mean", random_state=1)),
    "odcl-convex-clusterpath": linear(
        ODCL(clustering="convex", penalty="clusterpath", aggregate="mean", random_state=1)
    ),
    "odcl-convex-interval": linear(
        ODCL(
            clustering="convex",
            penalty="interval",
            true_labels=TRUE_KIND,
            aggregate="mean",
            random_state=1,
        )
    ),
    "odcl-convex-number": linear(
        ODCL(clustering="convex", penalty=0.15, aggregate="mean", random_state=1)
    ),
    "odcl-convex-neighbours": linear(
        ODCL(clustering="convex", penalty=0.5, n_neighbors=3, aggregate="mean", random_state=1)
    ),
    "odcl-size": linear(ODCL(2, aggregate="size", random_state=1)),
    "odcl-precision": linear(ODCL(2, aggregate="precision", random_state=1)),
    "odcl-statistics": linear(ODCL(2, aggregate="statistics", random_state=1)),
    "odcl-median": linear(ODCL(2, aggregate="median", random_state=1)),
    "odcl-predictions": linear(
        ODCL(2, aggregate="statistics", space="predictions", random_state=1)
    ),
    "odcl-robust": odd_linear(ODCL(robust=True, aggregate="mean", random_state=1)),
    "odcl-refined": linear(ODCL(2, refine_rounds=3, aggregate="mean", random_state=1)),
    "odcl-refined-fraction": linear(
        ODCL(2, refine_rounds=3, fraction=0.5, aggregate="mean", random_state=1)
    ),
    "odcl-sgd": linear(
        ODCL(2, solver="sgd", n_steps=200, radius=10.0, aggregate="mean", random_state=1)
    ),
    "odcl-sgd-average": linear(
        ODCL(
            2,
            solver="sgd",
            n_steps=100,
            batch_size=4,
            iterate="average",
            aggregate="mean",
            random_state=1,
        )
    ),
    "odcl-ridge": linear(ODCL(2, alpha=0.1, fit_intercept=False, aggregate="mean", random_state=1)),
    "odcl-empty-site": on_federation(sites_of_two_kinds, ODCL(2, aggregate="mean", random_state=1)),
    "odcl-logistic": logistic(ODCL(2, alpha=0.05, aggregate="mean", random_state=1)),
    "odcl-logistic-chosen": logistic(ODCL(alpha=0.05, aggregate="mean", random_state=1)),
    "odcl-logistic-convex": logistic(
        ODCL(clustering="convex", alpha=0.05, aggregate="mean", random_state=1)
    ),
    "odcl-logistic-spectral": logistic(
        ODCL(2, clustering="spectral", alpha=0.05, aggregate="mean", random_state=1)
    ),
    "odcl-logistic-gradient": logistic(
        ODCL(2, clustering="gradient", alpha=0.05, aggregate="mean", random_state=1)
    ),
    "odcl-logistic-precision": logistic(
        ODCL(2, aggregate="precision", alpha=0.05, refine_rounds=2, random_state=1)
    ),
    "odcl-default": linear(ODCL(random_state=1)),
    "odcl-default-two": linear(ODCL(2, random_state=1)),
    "odcl-auto-ridge": linear(ODCL(alpha="auto", random_state=1)),
    "odcl-covariance": linear(ODCL(send="covariance", random_state=1)),
    "odcl-logistic-default": logistic(ODCL(random_state=1)),
    "ifca-scaled": linear(IFCA(2, init=START, random_state=1)),
    "ifca-auto-ridge": linear(IFCA(2, alpha="auto", init=START, random_state=1)),
    "local-erm-auto-ridge": linear(LocalERM(alpha="auto", random_state=1)),
    "local-erm-logistic-auto-ridge": logistic(LocalERM(alpha="auto", random_state=1)),
    "naive-averaging-precision": linear(NaiveAveraging(random_state=1)),
    "ifca-squared": linear(IFCA(2, init=START, scale=False, random_state=1)),
    "ifca-random": linear(IFCA(2, local_steps=3, scale=False, random_state=1)),
    "ifca-gradient": linear(IFCA(2, averaging="gradient", init=START, scale=False, random_state=1)),
    "ifca-divide-by-all": linear(
        IFCA(
            2,
            averaging="gradient",
            divide_by="all",
            step_size=0.2,
            init=START,
            scale=False,
            random_state=1,
        )
    ),
    "ifca-batches": linear(
        IFCA(
            2, init=START, batch_size=8, fraction=0.6, max_rounds=15, step_size=0.05, tol=0
        ).set_params(scale=False, random_state=1)
    ),
    "ifca-logistic": logistic(IFCA(2, init=START, alpha=0.05, scale=False, random_state=1)),
    "ifca-logistic-gradient": logistic(
        IFCA(
            2,
            init=START[:, :3],
            averaging="gradient",
            alpha=0.05,
            max_rounds=60,
            scale=False,
            random_state=1,
        )
    ),
    "local-erm": linear(LocalERM(aggregate="mean", random_state=1)),
    "local-erm-logistic": logistic(LocalERM(alpha=0.05, aggregate="mean", random_state=1)),
    "naive-averaging": linear(NaiveAveraging(aggregate="mean", random_state=1)),
    "naive-averaging-logistic": logistic(
        NaiveAveraging(alpha=0.05, aggregate="mean", random_state=1)
    ),
    "oracle-averaging": linear(OracleAveraging(TRUE_KIND, random_state=1)),
    "oracle-averaging-by-name": linear(
        OracleAveraging(LABELS_BY_NAME, fit_intercept=False, alpha=0.1, random_state=1)
    ),
    "oracle-averaging-logistic": logistic(OracleAveraging(TRUE_KIND, alpha=0.05, random_state=1)),
    "cluster-oracle": linear(ClusterOracle(TRUE_KIND, random_state=1)),
    "cluster-oracle-logistic": logistic(ClusterOracle(TRUE_KIND, alpha=0.05, random_state=1)),
}

MIXTURES = {
    "fedgrem-adaptive": clouds(FedGrEM(2, random_state=1)),
    "fedgrem-spherical": clouds(FedGrEM(2, covariance_type="spherical", random_state=1)),
    "fedgrem-diag": clouds(FedGrEM(2, covariance_type="diag", random_state=1)),
    "fedgrem-tied": clouds(FedGrEM(2, covariance_type="tied", random_state=1)),
    "fedgrem-ward": clouds(FedGrEM(2, init="ward", second_start=False, random_state=1)),
    "fedgrem-start": clouds(FedGrEM(2, init=GROUP_CENTERS, align="exhaustive", random_state=1)),
    "fedgrem-odd-site": on(
        lambda: groups_inside_sites(odd=True), FedGrEM(2, random_state=1), y=False
    ),
    "fedgrem-empty-site": on_federation(groups_inside_sites, FedGrEM(2, random_state=1)),
    "fedgrem-weights": clouds(FedGrEM(2, share_weights=True, align="stepwise", random_state=1)),
    "fedgrem-clip": clouds(FedGrEM(2, clip=2.0, threshold=0.05, random_state=1)),
    "fedgrem-batches": clouds(
        FedGrEM(2, batch_size=10, local_steps=2, fraction=0.7, max_rounds=12, tol=0).set_params(
            random_state=1
        )
    ),
    "fedgrem-paper": clouds(FedGrEM(2, shrinkage="paper", random_state=1)),
    "fedgrem-paper-alternating": clouds(
        FedGrEM(2, shrinkage="paper", solver="alternating", share_weights=True, random_state=1)
    ),
    "fedgrem-paper-em": clouds(
        FedGrEM(2, shrinkage="paper", step="em", covariance_type="diag", random_state=1)
    ),
    "fedgrem-regression": mixed(FedGrEM(2, random_state=1)),
    "fedgrem-regression-intercept": mixed(FedGrEM(2, fit_intercept=True, random_state=1)),
    "fedgrem-regression-paper": mixed(
        FedGrEM(2, shrinkage="paper", sigma=0.5, fit_intercept=True, random_state=1)
    ),
    "fedgrem-regression-gradient": mixed(
        FedGrEM(2, step="gradient", step_constant=0.3, max_rounds=40, random_state=1)
    ),
    "fedem-plain": clouds(FedEM(2, random_state=1)),
    "fedem-pooled": clouds(FedEM(2, average="pooled", random_state=1)),
    "fedem-pooled-tied": clouds(FedEM(2, average="pooled", covariance_type="tied", random_state=1)),
    "fedem-diag": clouds(FedEM(2, covariance_type="diag", random_state=1)),
    "fedem-gradient": clouds(
        FedEM(
            2, step="gradient", step_constant=0.5, local_steps=2, fraction=0.7, max_rounds=15
        ).set_params(tol=0, random_state=1)
    ),
    "fedem-regression": mixed(FedEM(2, fit_intercept=True, random_state=1)),
    "fedem-regression-pooled": mixed(FedEM(2, average="pooled", random_state=1)),
    "tgmm-identity": clouds(TGMM(2, random_state=1)),
    "tgmm-diag": clouds(TGMM(2, covariance_type="diag", source_weight=0.2, random_state=1)),
    "fedgmm": mixed(FedGMM(2, n_input_components=2, max_rounds=100, random_state=1)),
    "fedgmm-intercept": mixed(
        FedGMM(2, n_input_components=1, fit_intercept=True, sigma=0.5, random_state=1)
    ),
    "local-em": clouds(LocalEM(2, n_restarts=1, max_rounds=100, random_state=1)),
    "local-em-few-rounds": clouds(LocalEM(2, init="ward", covariance_type="diag", random_state=1)),
    "local-em-gradient": clouds(
        LocalEM(2, step="gradient", init=GROUP_CENTERS, max_rounds=20, random_state=1)
    ),
    "local-em-regression": mixed(
        LocalEM(2, n_restarts=1, fit_intercept=True, max_rounds=100, random_state=1)
    ),
    "pooled-em": clouds(PooledEM(2, max_rounds=100, random_state=1)),
    "pooled-em-tied": clouds(PooledEM(2, covariance_type="tied", max_rounds=100, random_state=1)),
    "pooled-em-regression": mixed(PooledEM(2, max_rounds=100, random_state=1)),
}

CURVES = {
    "fgpr-exact": smooth(FGPR(common=False, random_state=1)),
    "fgpr-posterior": smooth(FGPR(common=False, personalise="posterior", random_state=1)),
    "fgpr-map": smooth(FGPR(common=False, personalise="map", random_state=1)),
    "fgpr-rough": rough(FGPR(common=False, random_state=1)),
    "fgpr-two-priors": rough(
        FGPR(common=False, n_priors=2, personalise="posterior", random_state=1)
    ),
    "fgpr-chosen-priors": rough(
        FGPR(common=False, n_priors=None, max_priors=2, personalise="posterior", random_state=1)
    ),
    "fgpr-kernel": smooth(
        FGPR(KERNEL, common=False, mean="linear", normalize_y="mean", random_state=1)
    ),
    "fgpr-start": smooth(
        FGPR(
            KERNEL, common=False, init=np.array([0.2, 0.1, -3.0]), mean="zero", normalize_y=False
        ).set_params(random_state=1)
    ),
    "fgpr-sgd": smooth(FGPR(common=False, optimizer="sgd", max_rounds=20, random_state=1)),
    "fgpr-sgd-theory": smooth(
        FGPR(
            common=False,
            optimizer="sgd",
            gradient_scaling="theory",
            schedule="inverse-sqrt",
            fraction=0.6,
        ).set_params(batch_size=10, max_rounds=15, personalise="posterior", random_state=1)
    ),
    "fgpr-sgd-constant": smooth(
        FGPR(
            common=False, optimizer="sgd", schedule="constant", learning_rate=0.1, local_steps=2
        ).set_params(max_rounds=15, personalise="map", random_state=1)
    ),
    "fgpr-adam": smooth(
        FGPR(
            common=False,
            optimizer="adam-restarted",
            learning_rate=0.05,
            max_rounds=10,
            random_state=1,
        )
    ),
    "fgpr-trimmed": smooth(
        FGPR(common=False, robust="trimmed", personalise="posterior", random_state=1)
    ),
    "fgpr-median": smooth(
        FGPR(common=False, robust="median", personalise="posterior", max_rounds=40, random_state=1)
    ),
    "fgpr-fraction": smooth(
        FGPR(common=False, fraction=0.6, personalise="posterior", max_rounds=30, random_state=1)
    ),
    "fgpr-pieces": smooth(
        FGPR(common=False, max_points=12, personalise="posterior", random_state=1)
    ),
    "fgpr-subset": smooth(FGPR(common=False, max_points=12, large_sites="subset", random_state=1)),
    "fgpr-empty-site": on_federation(curves, FGPR(common=False, random_state=1)),
    "local-gp": smooth(LocalGP(hyperprior=False, random_state=1)),
    "local-gp-kernel": smooth(LocalGP(KERNEL, mean="zero", hyperprior=False, random_state=1)),
    "pooled-gp": smooth(PooledGP(random_state=1)),
    "pooled-gp-kernel": smooth(PooledGP(KERNEL, normalize_y="mean", random_state=1)),
    "cokriging": on(levels, CoKriging(random_state=1)),
    "cokriging-levels": on(
        levels,
        CoKriging(["site-2", "site-4", "site-1", "site-3"], random_state=1),
    ),
    "cokriging-units": on(two_levels, CoKriging(normalize_y=False, random_state=1)),
    "fedavg-polynomial": smooth(FedAvgPolynomial(3, random_state=1)),
    "fedavg-polynomial-chosen": smooth(FedAvgPolynomial(None, max_rounds=10, random_state=1)),
    "fedavg-polynomial-fraction": smooth(
        FedAvgPolynomial(
            2, fraction=0.6, local_steps=2, max_rounds=20, normalize_y="mean"
        ).set_params(random_state=1)
    ),
    "fedavg-network": smooth(FedAvgNetwork(2, width=4, max_rounds=40, random_state=1)),
    "fedavg-network-one-layer": smooth(
        FedAvgNetwork(1, width=6, local_steps=2, max_rounds=30, fraction=0.6, random_state=1)
    ),
}

STANDARDIZED = {
    "standardizer": linear(Standardizer(random_state=1)),
    "standardizer-robust": odd_linear(Standardizer(robust=True, random_state=1)),
    "standardizer-whiten": clouds(Standardizer(whiten=True, random_state=1)),
    "standardizer-groups": clouds(Standardizer(whiten=True, n_groups=2, random_state=1)),
    "standardizer-robust-groups": on(
        lambda: groups_inside_sites(odd=True),
        Standardizer(whiten=True, n_groups=2, robust=True, random_state=1),
        y=False,
    ),
}

CASES: dict[str, Callable[[], Any]] = {
    **GROUPED_REGRESSIONS,
    **CLUSTERED,
    **MIXTURES,
    **CURVES,
    **STANDARDIZED,
}
PUBLIC = tuple(estimators.__all__)
