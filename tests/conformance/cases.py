"""The table of algorithms. A row here puts an algorithm through the whole battery."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from fedkin.algorithms import algorithm
from fedkin.algorithms.softmax_mixed_sets import TOGETHER_LOGS
from fedkin.datasets.fgpr import prior_spec
from fedkin.federation import Federation
from fedkin.models.kernels import from_spec
from fedkin.protocol import Algorithm
from fedkin.settings import Settings


@dataclass(frozen=True)
class Case:
    """An algorithm, a small federation it should cope with, and what to expect of it.

    name : the algorithm's name in `fedkin.registry`
    settings : settings under which it settles well within its rounds
    pooled_settings : settings under which identical clients give what all rows together give
    pooled : what they must give then, by other means: (X, y) -> {name of a result: array}
    shared : names of results that may not depend on who was late, odd or in which block
    make : the federation, from a number of clients and a seed; None: `ragged_federation`
    variant : tells rows of the same algorithm apart
    gaps : rounds in which clients may be missing without changing the end
    start_counts : what a client that missed the start would have sent changes the end
    rounds_setting : the setting that says how many rounds there are
    one_round : there is one round, and who is not heard in it has no part
    settles : it goes on until nothing moves; False: it has a few rounds (two, say) and then ends
    personal : names of arrays of the result that hold one entry per client
    never_met : a `tol` that is allowed, but that no fit of a few rounds meets
    any_target : the target may be any number; False: it is a count or a class
    tells_counts : it tells how many rows a class has: small whole numbers, as classes are
    """

    name: str
    settings: Mapping[str, Any]
    pooled_settings: Mapping[str, Any]
    pooled: Callable[[np.ndarray, np.ndarray], dict[str, np.ndarray]]
    shared: tuple[str, ...]
    make: Callable[[int, int], Federation] | None = None
    variant: str = ""
    gaps: range = range(3, 6)
    start_counts: bool = False
    rounds_setting: str = "max_rounds"
    one_round: bool = False
    settles: bool = True
    personal: tuple[str, ...] = ()
    never_met: float = -1.0
    any_target: bool = True
    tells_counts: bool = False

    def chosen(self, **changes: Any) -> Settings:
        """The settings as engines take them."""
        return self.algorithm.settings.from_mapping({**self.settings, **changes})

    def at_most(self, n_rounds: int) -> Settings:
        """The settings with so many rounds at the most, where there is a setting for that."""
        known = self.rounds_setting in self.algorithm.settings.defaults()
        return self.chosen(**({self.rounds_setting: n_rounds} if known else {}))

    def chosen_for_pooled(self) -> Settings:
        """The settings under which identical clients equal pooled ones."""
        return self.algorithm.settings.from_mapping(self.pooled_settings)

    def federation(self, n_clients: int = 7, seed: int = 0) -> Federation:
        return (self.make or ragged_federation)(n_clients, seed)

    @property
    def goes_on(self) -> bool:
        """Whether rounds follow each other until nothing moves."""
        return self.settles and not self.one_round

    @property
    def algorithm(self) -> Algorithm:
        return algorithm(self.name)

    def __str__(self) -> str:
        return f"{self.name}, {self.variant}" if self.variant else self.name


def ragged_federation(n_clients: int = 7, seed: int = 0) -> Federation:
    """Ragged clients of two kinds; names sort differently as text and as numbers."""
    rng = np.random.default_rng(seed)
    coef = np.array([[2.0, -1.0, 0.5], [-2.0, 1.0, 3.0]])
    clients = {}
    for k in range(n_clients):
        n = int(rng.integers(4, 15))
        X = rng.normal(size=(n, 3))
        clients[f"site-{k + 5}"] = (X, X @ coef[k % 2] + 0.5 * rng.normal(size=n))
    return Federation.from_clients(clients)


def folded_federation(n_clients: int = 7, seed: int = 0) -> Federation:
    """Clients with enough rows for two folds, but for two of them just so."""
    rng = np.random.default_rng(seed)
    clients = {}
    for k in range(n_clients):
        n = 6 if k in (1, 4) else int(rng.integers(14, 20))
        X = rng.normal(size=(n, 3)) + 2.0 * (np.arange(n) % 2)[:, None]
        clients[f"site-{k + 5}"] = (X, np.sin(X[:, 0]) + 0.3 * rng.normal(size=n))
    return Federation.from_clients(clients)


_CURVES = {"common": False, "personalise": "posterior", "max_rounds": 4}
_WAYS_OF_CURVES = [["LocalGP", {}, 0], ["FGPR", _CURVES, 0]]
_FOLDED_CURVES = {"ways": json.dumps(_WAYS_OF_CURVES), "folds": 2}
_GROUPS = {"n_components": 2, "covariance_type": "spherical", "n_restarts": 2, "max_rounds": 3}
_ALONE = {"n_components": 2, "covariance_type": "spherical"}
_WAYS_OF_GROUPS = [["LocalEM", _ALONE, 0], ["FedEM", _GROUPS, 0], ["FedGrEM", _GROUPS, 1]]
_FOLDED_GROUPS = {"ways": json.dumps(_WAYS_OF_GROUPS), "folds": 2}


def _least_squares(X: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    coef = np.linalg.lstsq(X, y, rcond=None)[0]
    return {"coef": coef[None], "sigma": np.sqrt(np.mean((y - X @ coef) ** 2))}


def _one_regression(X: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """Copies of one site do not differ: their mixed model is one regression."""
    design = np.column_stack([X, np.ones(len(X))])
    coef = np.linalg.lstsq(design, y, rcond=None)[0]
    sigma = np.sqrt(np.mean((y - design @ coef) ** 2))
    return {"coef": coef, "sigma": sigma, "random_covariance": np.zeros((4, 4))}


def counted_federation(n_clients: int = 7, seed: int = 0, family: str = "binomial") -> Federation:
    """Zeros and ones, or counts beyond the numbers of rows; two clients are tiny."""
    rng = np.random.default_rng(seed)
    clients = {}
    for k in range(n_clients):
        n = 6 if k in (3, 5) else int(rng.integers(25, 50))
        X = rng.normal(size=(n, 3))
        eta = X @ [0.3, -0.3, 0.2] + 0.3 * rng.normal() + 0.2
        y = rng.random(n) < 1 / (1 + np.exp(-eta)) if family == "binomial" else None
        clients[f"site-{k + 5}"] = (X, 200 + rng.poisson(np.exp(5 + eta)) if y is None else y)
    return Federation.from_clients({k: (X, np.asarray(y, float)) for k, (X, y) in clients.items()})


def _one_generalised_regression(family: str) -> Callable[..., dict[str, np.ndarray]]:
    """Copies of one site do not differ: their mixed model is one regression of counts."""

    def fitted(X: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
        import statsmodels.api as sm

        kind = sm.families.Binomial() if family == "binomial" else sm.families.Poisson()
        design = np.column_stack([X, np.ones(len(X))])
        found = sm.GLM(y, design, family=kind).fit(tol=1e-12)
        return {"coef": found.params, "random_covariance": np.zeros((1, 1))}

    return fitted


def labelled_federation(n_clients: int = 7, seed: int = 0) -> Federation:
    """Three classes at every client; two clients are tiny."""
    rng = np.random.default_rng(seed)
    clients = {}
    for k in range(n_clients):
        n = 6 if k in (3, 5) else int(rng.integers(15, 30))
        y = np.arange(n) % 3
        X = rng.normal(size=(n, 3)) + 0.7 * np.eye(3)[y] + 0.5 * rng.normal(size=3)
        clients[f"site-{k + 5}"] = (X, y.astype(float))
    return Federation.from_clients(clients)


def _penalised_softmax(X: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """The common model: a penalised softmax regression of all rows.

    Of the ridges that are tried, copies of a site are foretold best by the weakest; for a site that
    is alone, rows left out choose the strongest.
    """
    from scipy.optimize import minimize

    n_copies = int((X[0] == X).all(axis=1).sum())
    design = np.column_stack([(X - X.mean(axis=0)) / X.std(axis=0), np.ones(len(X))])
    hot = np.eye(3)[y.astype(int)]
    chosen = np.exp(-TOGETHER_LOGS[-1 if n_copies > 1 else 0])
    ridge = np.tile([chosen, chosen, chosen, 0.01], (3, 1))

    def objective(flat):
        W = flat.reshape(3, 4)
        scores = design @ W.T
        total = np.logaddexp.reduce(scores, axis=1)
        share = np.exp(scores - total[:, None])
        value = (total - (scores * hot).sum(axis=1)).sum() + 0.5 * (ridge * W**2).sum()
        return value, ((share - hot).T @ design + ridge * W).ravel()

    found = minimize(objective, np.zeros(12), jac=True, method="BFGS", options={"gtol": 1e-10})
    return {"population": found.x.reshape(3, 4)}


def _all_sums(X: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """Folds lose no row: together they are the sums over all rows."""
    table = np.column_stack([X, np.ones(len(X)), y])
    return {"total": np.append((table.T @ table)[np.triu_indices(5)], len(X))}


def _lasso(X: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    from sklearn.linear_model import Lasso

    model = Lasso(alpha=5.0 / len(y), fit_intercept=False, tol=1e-13, max_iter=100_000)
    return {"coef": model.fit(X, y).coef_}


def _cluster_least_squares(X: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    return {"cluster_models": np.linalg.lstsq(X, y, rcond=None)[0][None]}


def _own_least_squares(X: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """A row a client: as many as there are copies of the first row."""
    n_copies = int((X[0] == X).all(axis=1).sum())
    return {"cluster_models": _cluster_least_squares(X, y)["cluster_models"].repeat(n_copies, 0)}


_PLAIN = {"fit_intercept": False}
# The kinds of `ragged_federation`'s clients; an empty one may be with them, or three on FLARE.
_KINDS = {f"site-{k + 5}": k % 2 for k in range(7)}
_KINDS |= {"site-empty": 0, "berlin": 0, "lyon": 1, "porto": 0}
_MANY_ROUNDS = {"step_size": 0.5, "local_steps": 1, "max_rounds": 120, "tol": 1e-11}


def _within_two_groups(X: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """Of identical clients, so that the rows of one tell the groups of all."""
    from sklearn.cluster import AgglomerativeClustering
    from sklearn.decomposition import PCA
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(X)
    rows = scaler.transform(np.unique(X, axis=0))
    scores = PCA().fit_transform(rows)
    scores /= np.sqrt(scores.std(axis=0))
    labels = AgglomerativeClustering(2, linkage="ward").fit_predict(scores)
    about = np.concatenate([rows[labels == g] - rows[labels == g].mean(axis=0) for g in (0, 1)])
    covariance = about.T @ about / (len(rows) - 2)
    return {"mean": scaler.mean_, "scale": scaler.scale_, "covariance": covariance}


# ------------------------------------------------------------------ groups inside every client

GROUP_MEANS = np.array([[3.0, 0.0, -3.0], [-3.0, 1.0, 3.0]])
GROUP_COEF = np.array([[2.0, -1.0, 0.5], [-2.0, 1.0, 3.0]])
NEAR_MEANS = GROUP_MEANS + 0.5
NEAR_COEF = GROUP_COEF + 0.3


def grouped_federation(n_clients: int = 7, seed: int = 0) -> Federation:
    """Two groups of rows at every client, in x and in y given x; two clients are tiny."""
    rng = np.random.default_rng(seed)
    clients = {}
    for k in range(n_clients):
        n = 6 if k in (3, 5) else int(rng.integers(25, 50))
        group = np.arange(n) % 2
        X = GROUP_MEANS[group] + 0.2 * rng.normal(size=3) + rng.normal(size=(n, 3))
        own = GROUP_COEF + 0.1 * rng.normal(size=(2, 3))
        y = (X * own[group]).sum(axis=1) + 0.5 * rng.normal(size=n)
        clients[f"site-{k + 5}"] = (X, y)
    return Federation.from_clients(clients)


def classed_federation(n_clients: int = 7, seed: int = 0, every: int = 1) -> Federation:
    """The same groups, with the group of every so many rows as target, -1 for the others.

    Two rows of a group at least: the mean of one is that row, as its field says.
    """
    rows, clients = grouped_federation(n_clients, seed), {}
    for k, name in enumerate(rows.names):
        X = rows.client(k)[0]
        group, pair = np.arange(len(X)) % 2, np.arange(len(X)) // 2
        known = (pair % every == 0) | (pair < 2)
        clients[name] = (X, np.where(known, group, -1).astype(float))
    return Federation.from_clients(clients)


def _em(log_density: Callable[[Any], np.ndarray], maximise: Callable[[np.ndarray], Any], start):
    """Plain EM on one table; parameters, and the log likelihood at the end."""
    parameters, weights = start, np.array([0.5, 0.5])
    for _ in range(2000):
        joint = log_density(parameters) + np.log(weights)
        total = np.logaddexp.reduce(joint, axis=1)
        share = np.exp(joint - total[:, None])
        parameters, weights = maximise(share), share.mean(axis=0)
    return parameters, total.sum()


def _gaussian_em(X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, float]:
    def log_density(means):
        squares = ((X[:, None] - means) ** 2).sum(axis=-1)
        return -0.5 * (squares + X.shape[1] * np.log(2 * np.pi))

    return _em(log_density, lambda share: share.T @ X / share.sum(axis=0)[:, None], NEAR_MEANS)


def _centers_of_gaussians(X: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    return {"centers": _gaussian_em(X, y)[0]}


def _likelihood_of_gaussians(X: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    return {"loglik": np.array(_gaussian_em(X, y)[1])}


def _centers_of_tied_gaussians(X: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    from sklearn.mixture import GaussianMixture

    model = GaussianMixture(
        2, covariance_type="tied", means_init=NEAR_MEANS, tol=1e-14, max_iter=5000, reg_covar=0.0
    )
    model.fit(X)
    return {"centers": model.means_, "covariance": model.covariances_}


def _regression_em(X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, float, float]:
    """Coefficients, noise and log likelihood."""

    def log_density(parameters):
        coef, sigma = parameters
        residual = (y[:, None] - X @ coef.T) / sigma
        return -0.5 * (residual**2 + np.log(2 * np.pi)) - np.log(sigma)

    def maximise(share):
        coef = [np.linalg.solve(X.T @ (w[:, None] * X), X.T @ (w * y)) for w in share.T]
        left = (share * (y[:, None] - X @ np.array(coef).T) ** 2).sum()
        return np.array(coef), np.sqrt(left / len(y))

    (coef, sigma), loglik = _em(log_density, maximise, (NEAR_COEF, 1.0))
    return coef, sigma, loglik


def _centers_of_regressions(X: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    coef, sigma, _ = _regression_em(X, y)
    return {"centers": coef, "noise": np.array([sigma])}


def _likelihood_of_regressions(X: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    return {"loglik": np.array(_regression_em(X, y)[2])}


def _mixture(
    name: str,
    variant: str = "",
    family: str = "gaussian",
    settings: Mapping[str, Any] | None = None,
    pooled: Mapping[str, Any] | None = None,
    **more: Any,
) -> Case:
    """A row for a method with groups inside clients; identical clients equal EM on all rows."""
    common = {"family": family, "tol": 1e-11, "max_rounds": 500, **(settings or {})}
    near = NEAR_COEF if family == "regression" else NEAR_MEANS
    oracle = _centers_of_regressions if family == "regression" else _centers_of_gaussians
    oracle = more.pop("oracle", oracle)
    return Case(
        name,
        common,
        {**common, "init": near, "tol": 1e-13, **(pooled or {})},
        oracle,
        ("centers", "components", *more.pop("also", ())),
        grouped_federation,
        variant,
        **more,
    )


_PAPER = algorithm("fedgrem").settings.presets["paper"]

MIXTURE_CASES = (
    _mixture("fedgrem", "adaptive"),
    _mixture("fedgrem", "paper", settings=_PAPER),
    _mixture(
        "fedgrem",
        "regression, sure",
        "regression",
        {"init": "federated", "n_restarts": 4, "standard_errors": True},
        also=("center_errors",),
    ),
    _mixture(
        "fedgrem",
        "tied, shared weights, sure",
        settings={"covariance_type": "tied", "share_weights": True, "standard_errors": True},
        oracle=_centers_of_tied_gaussians,
    ),
    _mixture(
        "fedgrem",
        "full",
        settings={"covariance_type": "full", "n_restarts": 4},
        pooled={"n_components": 1, "init": NEAR_MEANS[:1]},
        oracle=lambda X, y: {"centers": X.mean(axis=0)[None]},
    ),
    *(
        replace(
            _mixture(
                "fedgrem",
                variant,
                settings={"covariance_type": "full", "labels": True, "share_weights": True},
                pooled={"labels": False, "n_components": 1, "init": NEAR_MEANS[:1]},
                oracle=lambda X, y: {"centers": X.mean(axis=0)[None]},
                also=("temperatures", *also),
                start_counts=True,
                any_target=False,
                tells_counts=True,
            ),
            make=partial(classed_federation, every=every),
        )
        for variant, every, also in (
            ("full, all labels", 1, ()),
            ("full, some labels", 3, ("class_means", "class_predictive", "taught_means")),
        )
    ),
    _mixture("fedem", "plain"),
    _mixture("fedem", "pooled", settings={"average": "pooled"}),
    _mixture(
        "fedem",
        "regression",
        "regression",
        {"average": "pooled", "init": "federated", "n_restarts": 4},
    ),
    _mixture("tgmm", pooled={"source_weight": 0.0}, start_counts=True),
    _mixture(
        "fedgmm",
        family="regression",
        settings={"init": "federated", "n_restarts": 4, "n_input_components": 1},
    ),
    Case(
        "held_out",
        {"folds": 2, "least_fold_rows": 1},
        {"folds": 2, "least_fold_rows": 1},
        _all_sums,
        ("total",),
        one_round=True,
        personal=("statistics",),
    ),
    Case(
        "left_out",
        _FOLDED_CURVES,
        _FOLDED_CURVES,
        lambda X, y: {"total": np.array(float(len(X)))},
        ("total",),
        folded_federation,
        variant="curves",
        settles=False,
        personal=("totals", "products", "rows"),
    ),
    Case(
        "left_out",
        _FOLDED_GROUPS,
        _FOLDED_GROUPS,
        lambda X, y: {"total": np.array(float(len(X)))},
        ("total",),
        folded_federation,
        variant="groups",
        settles=False,
        personal=("rows",),  # sites alone go on climbing as long as one of them gains
    ),
    Case(
        "site_checks",
        {},
        {},
        lambda X, y: {"total": np.array(float(len(X)))},
        ("total",),
        one_round=True,
        personal=("found", "rows"),
    ),
    Case(
        "local_em",
        {"tol": 1e-12},
        {"tol": 1e-12},
        _likelihood_of_gaussians,
        ("loglik",),
        grouped_federation,
        gaps=range(1, 2),
    ),
    Case(
        "local_em",
        {"family": "regression", "tol": 1e-12},
        {"family": "regression", "tol": 1e-12},
        _likelihood_of_regressions,
        ("loglik",),
        grouped_federation,
        "regression",
        gaps=range(1, 2),
    ),
)


def _gaussian_process(X: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """Copies of one site have that site's optimum, so repeated rows count once."""
    from scipy.optimize import minimize
    from sklearn.gaussian_process import GaussianProcessRegressor

    first = np.sort(np.unique(X, axis=0, return_index=True)[1])
    start = from_spec(prior_spec(3.0, 5.0, 1.0))
    oracle = GaussianProcessRegressor(start, alpha=0.0, optimizer=None).fit(X[first], y[first])

    def objective(theta):
        value, gradient = oracle.log_marginal_likelihood(theta, eval_gradient=True)
        return -value / len(first), -gradient / len(first)

    options = {"ftol": 0.0, "gtol": 1e-10}
    bounds = start.bounds
    found = minimize(objective, start.theta, jac=True, bounds=bounds, options=options)
    return {"theta": found.x[None]}


def _residual(X: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    design = np.column_stack([np.ones(len(X)), X])
    coef = np.linalg.lstsq(design, y, rcond=None)[0]
    return {"noise": np.sqrt(np.mean((y - design @ coef) ** 2))}


_PRIOR = {
    "kernel": prior_spec(3.0, 5.0, 1.0),
    "normalize_y": False,
    "mean": "zero",
    "tol": 1e-10,
}
_COMMON = {**_PRIOR, "common": True, "hyperprior": False, "n_points": 4, "tol": 1e-7}
_LINE = {
    "model": "polynomial",
    "degree": 1,
    "normalize_y": False,
    "local_steps": 1,
    "learning_rate": 1.0,
    "tol": 1e-11,
    # With other sites missing in every round it never settles; the journal test does that.
    "max_rounds": 150,
}

CASES = (
    Case(
        "fmlr",
        {"share": "sums", "n_components": 2, "fit_intercept": False, "n_restarts": 3},
        {"share": "sums", "n_components": 1, "fit_intercept": False},
        _least_squares,
        ("coef", "sigma", "weights"),
    ),
    Case(
        "fmlr",
        {"n_components": 1, "degrees": True, "site_noise": "common"},
        {"n_components": 1, "degrees": True, "site_noise": "common"},
        lambda X, y: {**(one := _one_regression(X, y)), "coef": one["coef"][None]},
        ("coef", "coef_covariance", "random_covariance", "sigma"),
        variant="degrees",
        one_round=True,
        personal=("effects", "site_coef", "responsibilities"),
    ),
    Case(
        "mixed_model",
        {},
        {"method": "ml"},
        _one_regression,
        ("coef", "coef_covariance", "random_covariance", "sigma"),
        one_round=True,
        personal=("effects", "effects_covariance"),
    ),
    Case(
        "mixed_model",
        {"share": "gradients", "random": "intercept"},
        {"share": "gradients", "random": "intercept", "method": "ml", "tol": 1e-8},
        lambda X, y: {**_one_regression(X, y), "random_covariance": np.zeros((1, 1))},
        ("coef", "coef_covariance", "random_covariance", "sigma"),
        variant="gradients",
    ),
    *(
        Case(
            "mixed_model",
            {"family": family, "random": "intercept"},
            {"family": family, "random": "intercept", "tol": 1e-8},
            _one_generalised_regression(family),
            ("coef", "coef_covariance", "random_covariance"),
            partial(counted_federation, family=family),
            variant=family,
            any_target=False,
        )
        for family in ("binomial", "poisson")
    ),
    Case(
        "softmax_mixed",
        {"tol": 1e-7},
        {"tol": 1e-6},
        _penalised_softmax,
        ("coef", "population", "variances"),
        labelled_federation,
        start_counts=True,
        any_target=False,
    ),
    Case(
        "standardizer",
        {"whiten": True, "n_groups": 2},
        {"whiten": True, "n_groups": 2},
        _within_two_groups,
        ("mean", "scale", "covariance", "whitening"),
    ),
    Case(
        "consensus_lasso",
        {"alpha": 5.0, "tol": 1e-11},
        {"alpha": 5.0, "tol": 1e-12, "max_rounds": 5000},
        _lasso,
        ("coef",),
    ),
    *MIXTURE_CASES,
    Case(
        "odcl",
        {"n_clusters": 2, "aggregate": "size", "refine_rounds": 5, **_PLAIN},
        {"n_clusters": 1, "aggregate": "size", **_PLAIN},
        _cluster_least_squares,
        ("cluster_models",),
        rounds_setting="refine_rounds",
    ),
    Case(
        "odcl",
        {"n_clusters": 2, "aggregate": "statistics", "refine_rounds": 5, **_PLAIN},
        {"n_clusters": 1, "aggregate": "statistics", **_PLAIN},
        _cluster_least_squares,
        ("cluster_models",),
        rounds_setting="refine_rounds",
        variant="statistics",
    ),
    Case(
        "odcl",
        {"n_clusters": 2, "refine_rounds": 5, **_PLAIN},
        {"n_clusters": 1, **_PLAIN},
        _cluster_least_squares,
        ("cluster_models",),
        rounds_setting="refine_rounds",
        variant="defaults",
    ),
    *(
        Case(
            "odcl",
            {"given_clusters": given, "true_labels": _KINDS, "aggregate": aggregate, **_PLAIN},
            {"given_clusters": alone, "aggregate": aggregate, **_PLAIN},
            _own_least_squares if given == "own" else _cluster_least_squares,
            ("cluster_models",),
            variant=variant,
            one_round=True,
            personal=("models",),
        )
        for variant, given, aggregate, alone in (
            ("naive averaging", "one", "mean", "one"),
            ("naive averaging by precision", "one", "auto", "one"),
            ("local ERM", "own", "mean", "own"),
            ("oracle averaging", "true", "mean", "one"),
            ("cluster oracle", "true", "statistics", "one"),
        )
    ),
    Case(
        "ifca",
        {"init": np.eye(2, 3) - np.eye(2, 3)[::-1], **_PLAIN, **_MANY_ROUNDS},
        {"n_clusters": 1, "max_rounds": 20_000, "tol": 1e-12, **_PLAIN},
        _cluster_least_squares,
        ("cluster_models",),
        never_met=0.0,
    ),
    Case(
        "fgpr",
        {**_PRIOR, "standard_errors": True},
        _PRIOR,
        _gaussian_process,
        ("theta", "theta_errors"),
        never_met=1e-300,
    ),
    Case(
        "fgpr",
        _COMMON,
        _PRIOR,
        _gaussian_process,
        ("theta", "common_bound"),
        variant="common curve",
        start_counts=True,
        never_met=1e-300,
    ),
    Case("fedavg", _LINE, _LINE, _residual, ("theta",), never_met=1e-300),
)
