import numpy as np
import pytest

from fedkin import TGMM, FedEM, Federation, FedGMM, FedGrEM, LocalEM, PooledEM
from fedkin.algorithms import algorithm
from fedkin.algorithms.mixtures.fedgrem import FedGremSettings
from fedkin.algorithms.mixtures.settings import NotOffered
from fedkin.datasets import make_gaussian_mixtures

SITES = make_gaussian_mixtures(3, 30, n_outliers=0, n_components=2, n_features=3).clients
MIXTURES = ("fedgrem", "fedem", "tgmm", "fedgmm", "local_em")
GROUPS = np.array(SITES.names)[SITES.owner]
WITH_Y = Federation.from_groups(SITES.X, GROUPS, SITES.X.sum(axis=1))


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (FedGrEM(2, family="poisson"), "family must be one of"),
        (FedGrEM(2, covariance_type="whole"), "covariance_type must be one of"),
        (FedGrEM(2, covariance_type="full", clip=2.0), "covariance_type=.full. is for"),
        (FedGrEM(None, family="regression"), "n_components=None is for"),
        (FedGrEM(2, shrinkage="none"), "shrinkage must be one of"),
        (FedGrEM(2, init="random"), "init must be one of"),
        (FedGrEM(2, init="federated"), "is for family='regression'"),
        (FedGrEM(2, family="regression", init="ward"), "from 'kmeans\\+\\+', 'federated' or an"),
        (LocalEM(2, family="regression", init="ward"), "start from 'kmeans\\+\\+' or an array"),
        (FedGMM(2, init="ward"), "is for family='gaussian'"),
        (FedGrEM(2, init=np.zeros((3, 3))), r"init has shape \(3, 3\); expected \(2, 3\)"),
        (FedGrEM(0), "n_components must be at least 1"),
        (FedGrEM(31), "needs a site with at least as many rows"),
        (FedGrEM(2, n_restarts=0), "n_restarts must be at least 1"),
        (FedGrEM(2, sigma=-1.0), "sigma must be above 0"),
        (FedGrEM(2, fraction=0.0), "fraction must be above 0"),
        (FedGrEM(2, batch_size=0), "batch_size must be at least 1"),
        (FedGrEM(2, local_steps=0), "local_steps must be at least 1"),
        (FedGrEM(2, clip=0.0), "clip must be above 0"),
        (FedGrEM(2, step="newton"), "step must be one of"),
        (FedGrEM(2, solver="sgd"), "solver must be one of"),
        (FedGrEM(2, second_start="maybe"), "second_start must be one of"),
        (FedGrEM(2.5), "n_components must be a whole number, not 2.5"),
        (FedGrEM("3"), "n_components must be a whole number, not '3'"),
        (FedGrEM(2, max_rounds=2.5), "max_rounds must be a whole number"),
        (FedGrEM(2, n_restarts=1.5), "n_restarts must be a whole number"),
        (FedGrEM(2, threshold=-1.0), "threshold must be at least 0"),
        (FedGrEM(2, penalty_constant=-1.0), "penalty_constant must be at least 0"),
        (FedGrEM(2, penalty_start=np.nan), "penalty_start must be at least 0, not nan"),
        (FedGrEM(2, tol=np.nan), "tol must be a number"),
        (FedGrEM(2, tol="small"), "tol must be a number"),
        (FedGrEM(2, align="best"), "align must be one of"),
        (FedGrEM(2, init=None), "init must be one of .* or an array, not None"),
        (FedGrEM(2, family="regression"), "requires y to be passed"),
        (FedEM(2, average="median"), "average must be one of"),
        (FedEM(2, average="pooled", local_steps=2), "one M-step of all rows"),
        (FedGMM(2, family="gaussian"), "For Gaussian mixtures use FedEM, TGMM or FedGrEM"),
        (FedGMM(2, n_input_components=0), "n_input_components must be at least 1"),
        (TGMM(2, family="regression"), "use FedEM, FedGMM or FedGrEM"),
        (TGMM(2, source_weight=-1.0), "source_weight must be at least 0"),
        (LocalEM(2, init=np.zeros((2, 4))), r"init has shape \(2, 4\); expected \(2, 3\)"),
        (FedGrEM(2, init=np.full((2, 3), np.nan)), r"not finite \(6, the first at \[0, 0\]\)"),
        (PooledEM(2, init=[[0, 0, 0], [0, np.inf, 0]]), r"not finite \(1, the first at \[1, 1\]"),
        (LocalEM(2, step="newton"), "step must be one of"),
    ],
    ids=str,
)
def test_bad_arguments_are_named(estimator, message):
    with pytest.raises(ValueError, match=message):
        estimator.fit(SITES.X, groups=GROUPS)


@pytest.mark.parametrize("name", ["tgmm", "fedgmm"])
def test_the_algorithms_themselves_refuse_the_other_family(name):
    family = "regression" if name == "tgmm" else "gaussian"
    with pytest.raises(ValueError, match="FedEM"):
        algorithm(name).settings(family=family)


def test_pooled_rows_need_the_data_here():
    class Elsewhere:
        pass

    with pytest.raises(ValueError, match="brings all rows to one place"):
        PooledEM(2).fit()
    with pytest.raises(ValueError, match="For data that stay at the sites use FedGrEM"):
        PooledEM(2, engine=Elsewhere()).fit(SITES)


def test_shapes_of_coefficients_with_and_without_intercept_are_told():
    model = FedGrEM(2, family="regression", fit_intercept=True, init=np.zeros((2, 5)))
    with pytest.raises(ValueError, match=r"expected \(2, 4\) .* intercept last or left out for 0"):
        model.fit(WITH_Y)
    with pytest.raises(ValueError, match=r"expected \(2, 3\) for all sites or \(3, 2, 3\)$"):
        model.set_params(fit_intercept=False).fit(WITH_Y)


def test_wrong_shapes_in_use_are_named():
    fitted = FedGrEM(2, random_state=0).fit(SITES)
    with pytest.raises(ValueError, match="groups must name a site for each"):
        fitted.predict(SITES.X, groups=GROUPS[:-1])
    with pytest.raises(ValueError, match="the fit had 3 features"):
        fitted.predict(make_gaussian_mixtures(2, 20, n_outliers=0).clients)
    regression = FedGrEM(1, family="regression", random_state=0)
    regression.fit(SITES.X, SITES.X.sum(axis=1) + GROUPS.astype("U1").view(np.uint32), GROUPS)
    with pytest.raises(ValueError, match="needs y"):
        regression.score_samples(SITES.X, groups=GROUPS)
    for rows in (SITES, SITES.X):
        with pytest.raises(ValueError, match="score needs the target y"):
            regression.score(rows)
    with pytest.raises(ValueError, match="y must hold one number per row"):
        regression.predict_proba(SITES.X, np.zeros(3), groups=GROUPS)


def test_parameters_beyond_the_first_are_named():
    with pytest.raises(TypeError):
        FedGrEM(3, "diag")


def test_auto_means_the_preset_of_the_shrinkage():
    for name in ("paper", "adaptive"):
        preset, auto = FedGremSettings.preset(name), FedGremSettings(shrinkage=name)
        assert (preset.step, preset.second_start) == (auto.site_step, auto.second_fit)
        assert (auto.step, auto.second_start) == ("auto", "auto")
    own = FedGremSettings(shrinkage="paper", step="em", second_start=True)
    assert own.site_step == "em" and own.second_fit


@pytest.mark.parametrize("name", MIXTURES)
def test_sites_see_every_offer_that_has_a_fallback(name):
    """A site that did not see it would silently work with the fallback."""
    settings = algorithm(name).settings
    offered = set(NotOffered.__annotations__) & set(settings.defaults())
    assert offered <= set(settings.seen_at_sites())


def test_a_site_has_to_admit_a_dozen_steps():
    """Eight with one covariance for all groups, nine where groups have their own or labels."""
    assert len(algorithm("fedgrem").steps) == 17
