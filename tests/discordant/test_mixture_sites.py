"""Empty, tiny, constant, far and contradictory sites beside ordinary ones."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from fedkin import TGMM, FedEM, Federation, FedGMM, FedGrEM, LocalEM, PooledEM
from fedkin.algorithms.mixtures.coordinator import Coordinator
from fedkin.algorithms.mixtures.fedgrem import FEDGREM, FedGremSettings
from fedkin.datasets import make_gaussian_mixtures
from fedkin.engines import InProcess
from fedkin.estimators.mixtures import AmbiguousWarning, StepHalvedWarning
from fedkin.protocol import Replies, Roster

CENTERS = np.array([[4.0, 0.0, 0.0], [0.0, 4.0, 0.0], [0.0, 0.0, 4.0]])
COEF = np.array([[5.0, 0.0, 0.0], [0.0, 5.0, 0.0], [0.0, 0.0, -5.0]])


def odd_mix(seed=0):
    """Ordinary sites and, beside them, every kind of discordant one."""
    rng = np.random.default_rng(seed)

    def site(n, groups=(0, 1, 2)):
        label = rng.choice(groups, size=n)
        X = CENTERS[label] + rng.normal(size=(n, 3))
        return X, (X * COEF[label]).sum(axis=1) + 0.3 * rng.normal(size=n)

    clients = {f"s{k}": site(int(rng.integers(60, 90))) for k in range(6)}
    clients["one row"] = site(1)
    clients["two rows"] = site(2)
    clients["one group"] = site(50, groups=(1,))
    clients["constant"] = (np.ones((20, 3)), np.ones(20))
    clients["empty"] = (np.empty((0, 3)), np.empty(0))
    return Federation.from_clients(clients)


SITES = odd_mix()
ESTIMATORS = [
    FedGrEM(3, random_state=0),
    FedGrEM(3, covariance_type="tied", random_state=0),
    FedGrEM(3, covariance_type="diag", random_state=0),
    FedGrEM(3, covariance_type="spherical", init="ward", random_state=0),
    FedGrEM(3, shrinkage="paper", random_state=0),
    FedGrEM(3, share_weights=True, random_state=0),
    FedGrEM(3, family="regression", random_state=0),
    FedEM(3, random_state=0),
    FedEM(3, average="pooled", random_state=0),
    FedEM(3, family="regression", random_state=0),
    TGMM(3, random_state=0),
    FedGMM(3, random_state=0),
    LocalEM(3, random_state=0),
]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_discordant_sites_are_coped_with(estimator):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in (ConvergenceWarning, AmbiguousWarning, StepHalvedWarning):
            warnings.simplefilter("ignore", kind)
        warnings.filterwarnings("ignore", "1 of .* not part of the fit .*empty")
        warnings.filterwarnings("ignore", "the target .* of this Federation is not used")
        warnings.filterwarnings("ignore", "FK027 .*'one row', 'two rows'")
        fitted = estimator.fit(SITES)
    assert {r.site for r in fitted.refusals_} == {"empty"}
    components = fitted.means_ if estimator.family == "gaussian" else fitted.coef_
    assert np.isfinite(components).all() and np.isfinite(fitted.weights_).all()
    np.testing.assert_allclose(fitted.weights_.sum(axis=1), 1.0)
    answers = fitted.predict(np.ones((3, 3)), groups=["empty", "one row", "never seen"])
    assert np.isfinite(answers).all()
    assert "empty" in str(fitted.summary())


def test_a_site_with_one_group_has_one_and_the_common_values_of_the_others():
    """Its own likelihood prefers three parts of one group; how usual they are speaks against it."""
    fitted = FedGrEM(3, random_state=0).fit(SITES)
    place = list(fitted.client_names_).index("one group")
    assert not fitted.ambiguous_[place]
    assert fitted.weights_[place].max() > 0.99
    distance = np.linalg.norm(fitted.centers_[:, None] - CENTERS, axis=-1)
    assert sorted(distance.argmin(axis=0)) == [0, 1, 2]
    assert distance.min(axis=0).max() < 0.5


def test_sites_whose_groups_cannot_be_matched_are_named():
    rng = np.random.default_rng(0)
    clients = {f"s{k}": CENTERS[rng.choice(3, 60)] + rng.normal(size=(60, 3)) for k in range(6)}
    # Three groups on the diagonal: as far from one centre as from another.
    clients["other"] = rng.choice([-30.0, 0.0, 30.0], size=(60, 1)) + rng.normal(size=(60, 3))
    with pytest.warns(AmbiguousWarning, match="site 'other' another matching"):
        fitted = FedGrEM(3, random_state=0).fit(Federation.from_clients(clients))
    assert list(fitted.client_names_[fitted.ambiguous_]) == ["other"]
    assert "Groups could be matched otherwise at: site 'other'" in str(fitted.summary())


def test_regressions_are_not_advised_to_start_as_only_gaussian_mixtures_can():
    rng = np.random.default_rng(0)
    clients = {}
    for k in range(6):
        X, label = rng.normal(size=(60, 3)), rng.choice(3, 60)
        clients[f"s{k}"] = (X, (X * COEF[label]).sum(axis=1) + 0.3 * rng.normal(size=60))
    X = rng.normal(size=(60, 3))
    clients["other"] = (X, rng.choice([-30.0, 0.0, 30.0], size=60) * X.sum(axis=1))
    model = FedGrEM(3, family="regression", init="kmeans++", random_state=0)
    with pytest.warns(AmbiguousWarning, match="'other'.*Fewer components may help"):
        model.fit(Federation.from_clients(clients))


def test_not_settling_and_halved_steps_are_said():
    with pytest.warns(ConvergenceWarning, match="did not settle within max_rounds=1"):
        FedGrEM(3, max_rounds=1, random_state=0).fit(SITES.take(np.arange(6)))
    wide = SITES.take(np.arange(6))
    wide = Federation.from_groups(
        wide.X * [50.0, 1.0, 1.0], np.array(wide.names)[wide.owner], wide.y
    )
    model = FedGrEM(3, family="regression", shrinkage="paper", max_rounds=5, random_state=0)
    with pytest.warns(StepHalvedWarning, match="lower step_constant"):
        model.fit(wide)


# --- sites that lie about their number of rows ---------------------------------------------------


def claiming(rows, bad):
    """FedGrEM's algorithm in which one site claims so many rows."""

    def lying(step):
        def function(clients, *rest, **fields):
            reply, memory = step.function(clients, *rest, **fields)
            if "rows" in reply and bad in clients.names:
                reply["rows"][clients.names.index(bad)] = rows
            return reply, memory

        return replace(step, function=function)

    steps = {name: lying(step) for name, step in FEDGREM.steps.items()}
    return replace(FEDGREM, steps=steps)


@pytest.mark.parametrize("rows", [1e9, -1.0])
@pytest.mark.parametrize("share_weights", [False, True])
def test_claimed_rows_do_not_move_the_papers_centre(rows, share_weights):
    sim = make_gaussian_mixtures(10, 100, n_outliers=0, n_components=2, n_features=3)
    far = replace(sim.clients, X=sim.clients.X + 1000.0 * (sim.clients.owner == 0)[:, None])
    settings = FedGremSettings.preset("paper", share_weights=share_weights)
    used = claiming(rows, far.names[0])
    found = InProcess().run(used, settings, far, 0).result["centers"]
    distance = np.linalg.norm(found[:, None] - sim.centers, axis=-1)
    assert sorted(distance.argmin(axis=0)) == [0, 1]
    assert distance.min(axis=0).max() < 1.0


@pytest.mark.parametrize("rows", [1e9, 1000.0, 1.0])
def test_claimed_rows_do_not_change_a_common_covariance(rows):
    sim = make_gaussian_mixtures(10, 100, n_outliers=0, n_components=2, n_features=3)
    used = claiming(rows, sim.clients.names[0])
    settings = FedGremSettings(covariance_type="tied")
    found = InProcess().run(used, settings, sim.clients, 0).result["covariance"]
    assert np.trace(found) / 3 == pytest.approx(1.0, abs=0.15)


class TiedSites(Coordinator):
    """Sites that have sent rows (m,) and scatter (m,) of one column."""

    def __init__(self, rows, scatter):
        roster = Roster(tuple(f"s{k}" for k in range(len(rows))))
        super().__init__(FedGremSettings(covariance_type="tied"), roster)
        components = np.tile([[-3.0], [3.0]], (len(rows), 1, 1))
        sent = {"components": components, "rows": rows, "scatter": scatter[:, None, None]}
        self.hear(Replies(np.arange(len(rows)), sent))

    def combine(self):
        """Not asked for."""


def test_scatter_that_fits_the_claimed_rows_counts_for_so_many_sites_only():
    server = TiedSites(np.array([1e9, *[100.0] * 100]), np.array([2e9, *[100.0] * 100]))
    assert server.covariance[0, 0] == pytest.approx((20 * 2 + 100) / 120)


def test_an_honest_site_of_few_rows_keeps_its_say_in_a_common_covariance():
    """Two components leave two thirds of the scatter of six rows, above the bound of one third."""
    server = TiedSites(np.array([6.0, 100.0, 100.0]), np.array([4.0, 100.0, 100.0]))
    assert server.covariance[0, 0] == pytest.approx(204 / 206)


# ------------------------------------------------------------------ not in silence


def groups_of_rows(m=6, n=40, seed=0):
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 3, size=m * n)
    X = np.array([[0.0, 0.0], [5.0, 0.0], [0.0, 5.0]])[label] + rng.normal(size=(m * n, 2))
    return X, np.repeat([f"s{k}" for k in range(m)], n)


def lines_of_rows(m=6, n=60, seed=0):
    """About seven rows of ten follow one line, three another; and what is expected of a row."""
    rng = np.random.default_rng(seed)
    label = (rng.random(m * n) < 0.3).astype(int)
    X = rng.normal(size=(m * n, 2))
    coef, level = np.array([[2.0, 1.0], [-3.0, 0.0]]), np.array([0.0, 4.0])
    y = (X * coef[label]).sum(axis=1) + level[label] + 0.3 * rng.normal(size=m * n)
    share = label.mean()
    expected = X @ ((1 - share) * coef[0] + share * coef[1]) + share * level[1]
    return X, y, np.repeat([f"s{k}" for k in range(m)], n), expected


def codes_told(estimator, *data, **more):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        estimator.fit(*data, **more)
    return {getattr(warning.message, "code", None) for warning in caught} - {None}


def test_a_pooled_fit_says_the_same_of_a_new_site_as_of_its_own():
    X, sites = groups_of_rows()
    model = PooledEM(3, random_state=0).fit(X, groups=sites)
    assert np.array_equal(model.centers_, model.means_[0])
    assert np.array_equal(model.predict(X, groups="new"), model.predict(X, groups=sites))


@pytest.mark.parametrize("family", [PooledEM, LocalEM])
def test_weights_for_a_new_site_are_those_of_the_lines_they_stand_beside(family):
    X, y, sites, expected = lines_of_rows()
    model = family(2, family="regression", fit_intercept=True, random_state=0)
    model.fit(X, y, groups=sites)
    assert len({tuple(np.argsort(c[:, 0])) for c in model.coef_}) == (2 if family is LocalEM else 1)
    missed = model.predict(X, groups="new") - expected
    assert np.sqrt(np.mean(missed**2)) < 0.15  # with weights exchanged it is above 1.5
    shares = model.summary().tables["centers"]["mean weight"]
    steep = int(np.argmin(model.centers_[:, 0]))
    assert shares[steep] == pytest.approx(0.3, abs=0.06)


@pytest.mark.parametrize(
    ("units", "kind", "told"),
    [
        ((1.0, 1.0), "identity", False),
        ((10.0, 10.0), "identity", False),
        ((1e-9, 1e-9), "identity", True),
        ((1e-9, 1e-9), "tied", False),
        ((1.0, 100.0), "identity", True),
        ((1.0, 100.0), "full", False),
        ((1.0, 1e5), "full", False),
        ((1.0, 1e5), "diag", False),
        ((1.0, 1e5), "tied", True),
        ((1.0, 1e5), "spherical", True),
    ],
)
def test_units_in_which_groups_cannot_be_told_are_named(units, kind, told):
    X, sites = groups_of_rows()
    codes = codes_told(FedGrEM(3, covariance_type=kind, random_state=0), X * units, groups=sites)
    assert ("FK025" in codes) == told


@pytest.mark.parametrize(("widest", "told"), [(100.0, False), (1e5, True)])
def test_variances_that_sites_fit_alone_bear_less_unlike_units(widest, told):
    X, sites = groups_of_rows()
    model = FedGrEM(3, covariance_type="diag", shrinkage="paper", random_state=0)
    assert ("FK025" in codes_told(model, X * (1.0, widest), groups=sites)) == told


@pytest.mark.parametrize(
    "estimator", [FedGrEM(2, family="regression"), FedGMM(2), LocalEM(2, family="regression")]
)
def test_lines_through_the_origin_that_miss_the_target_are_named(estimator):
    X, y, sites, _ = lines_of_rows()
    estimator = estimator.set_params(random_state=0)
    assert "FK026" in codes_told(estimator, X, y + 100.0, groups=sites)
    assert "FK026" not in codes_told(estimator, X, y - y.mean(), groups=sites)
    beside = estimator.set_params(fit_intercept=True)
    assert "FK026" not in codes_told(beside, X, y + 100.0, groups=sites)


def test_a_site_with_fewer_rows_than_groups_is_named_unless_weights_are_shared():
    X, sites = groups_of_rows()
    X, sites = np.r_[X, [[5.0, 0.0]]], np.r_[sites, ["lone"]]
    alone, shared = (FedGrEM(3, share_weights=how, random_state=0) for how in (False, True))
    assert "FK027" in codes_told(alone, X, groups=sites)
    assert "FK027" not in codes_told(shared, X, groups=sites)
    far = shared.predict([[5.0, 0.0], [0.0, 5.0]], groups="lone")
    assert far[0] != far[1]


@pytest.mark.parametrize("family", [FedGrEM, FedEM])
def test_a_target_of_one_value_is_predicted_and_named(family):
    X, y, sites, _ = lines_of_rows()
    model = family(2, family="regression", fit_intercept=True, random_state=0)
    assert "FK013" in codes_told(model, X, np.full_like(y, 5.0), groups=sites)
    assert model.predict(X, groups=sites) == pytest.approx(5.0)


def test_columns_far_from_zero_are_named_by_mixtures_of_regressions():
    X, y, sites, _ = lines_of_rows()
    with pytest.warns(RuntimeWarning, match="lost in rounding"):
        FedGrEM(2, family="regression", fit_intercept=True, random_state=0).fit(
            X + 1e6, y, groups=sites
        )
