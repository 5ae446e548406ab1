import numpy as np
import pytest

from fedkin import IFCA, ODCL, ClusterOracle, Federation, LocalERM, OracleAveraging
from fedkin.datasets import make_logistic_groups, make_sparse_regressions
from fedkin.datasets.odcl import APPENDIX_D2

GROUPS = make_sparse_regressions(30, n_clients=8, intervals=APPENDIX_D2)


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({"loss": "hinge"}, "loss must be one of 'squared', 'logistic', not 'hinge'"),
        ({"clustering": "magic"}, "clustering must be one of"),
        ({"aggregate": "vote"}, "aggregate must be one of"),
        ({"penalty": "best"}, "penalty must be a number or 'auto' or 'clusterpath' or 'interval'"),
        ({"penalty": -1.0}, "penalty must be at least 0, not -1.0"),
        ({"penalty": "interval"}, "is an oracle: it needs true_labels"),
        ({"penalty": 0.1, "clustering": "convex", "n_clusters": 2}, "not both"),
        ({"loss": "logistic", "aggregate": "statistics"}, "no sums stand for logistic rows"),
        ({"solver": "sgd", "aggregate": "statistics"}, "drop solver='sgd'"),
        ({"space": "predictions", "send": "model"}, "needs send='statistics'"),
        ({"n_clusters": 0}, "n_clusters must be at least 1"),
        ({"n_clusters": 9}, "n_clusters=9 needs at least as many sites with rows; there are 8"),
        ({"n_clusters": 2.5}, "n_clusters must be a whole number, not 2.5"),
        ({"n_clusters": "two"}, "n_clusters must be a whole number"),
        ({"max_clusters": 0}, "max_clusters must be at least 1"),
        ({"refine_rounds": -1}, "refine_rounds must be at least 0, not -1"),
        ({"refine_rounds": 1.5}, "refine_rounds must be a whole number"),
        ({"solver": "sgd", "n_steps": 0}, "n_steps must be at least 1"),
        ({"solver": "sgd", "batch_size": 0}, "batch_size must be at least 1"),
        ({"solver": "sgd", "radius": -1.0}, "radius must be above 0, not -1.0"),
        ({"radius": "x"}, "radius must be a number, not 'x'"),
        ({"penalty": None}, "penalty must be a number or 'auto' .*, not None"),
        ({"clustering": "convex", "n_neighbors": 3}, "give penalty a number, too"),
        ({"fraction": 0.0}, "fraction must be above 0"),
        ({"fraction": "x"}, "fraction must be a number, not 'x'"),
        ({"alpha": -1.0}, "alpha must be at least 0, not -1.0"),
        ({"alpha": "x"}, "alpha must be a number or 'auto', not 'x'"),
        ({"loss": "logistic"}, "Unknown label type: continuous"),
        ({"send": "rows only"}, "send must be one of None, 'model'"),
        ({"send": "rows", "aggregate": "precision"}, "needs send='covariance' or 'statistics'"),
        ({"send": "statistics", "solver": "sgd"}, "needs loss='squared' and solver='exact'"),
        ({"true_labels": [0, 1]}, "true_labels has 2 entries; there are 8 sites"),
        ({"true_labels": {"1": 0}}, "true_labels lacks site '2'"),
    ],
)
def test_a_wrong_parameter_is_named_with_its_remedy(parameters, complaint):
    with pytest.raises(ValueError, match=complaint):
        ODCL(**parameters).fit(GROUPS.federation)


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({"averaging": "both"}, "averaging must be one of"),
        ({"divide_by": "none"}, "divide_by must be one of"),
        ({"init": "oracle"}, "init must be one of"),
        ({"init": np.full((2, 20), np.nan)}, r"init has entries that are not finite \(40"),
        ({"init": np.ones((3, 20))}, r"init has shape \(3, 21\); expected \(2, 21\)"),
        ({"step_size": 0.0}, "step_size must be above 0, not 0.0"),
        ({"step_size": "x"}, "step_size must be a number, not 'x'"),
        ({"n_clusters": 0}, "n_clusters must be at least 1"),
        ({"local_steps": 0}, "local_steps must be at least 1"),
        ({"max_rounds": 0}, "max_rounds must be at least 1"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"tol": -1.0}, "tol must be at least 0, not -1.0"),
        ({"tol": None}, "tol must be a number, not None"),
    ],
)
def test_a_wrong_parameter_of_ifca_is_named(parameters, complaint):
    with pytest.raises(ValueError, match=complaint):
        IFCA(**parameters).fit(GROUPS.federation)


def test_ifca_says_when_its_steps_are_too_long():
    with pytest.raises(ValueError, match=r"IFCA diverges: .* step_size=50; use a smaller one"):
        IFCA(2, step_size=50.0, local_steps=2).fit(GROUPS.federation)


def test_oracles_need_the_truth_and_probabilities_need_the_logistic_loss():
    with pytest.raises(ValueError, match="is an oracle: it needs true_labels"):
        OracleAveraging().fit(GROUPS.federation)
    with pytest.raises(ValueError, match="is an oracle: it needs true_labels"):
        ClusterOracle().fit(GROUPS.federation)
    fitted = LocalERM().fit(GROUPS.federation)
    with pytest.raises(AttributeError, match="predict_proba"):
        fitted.predict_proba(GROUPS.federation)


def test_data_are_needed():
    with pytest.raises(ValueError, match="fit needs data"):
        ODCL().fit()
    with pytest.raises(ValueError, match="ODCL needs a target y"):
        ODCL().fit(Federation.from_clients([np.ones((3, 2))]))
    with pytest.raises(ValueError, match="adapt needs the name of the site"):
        LocalERM().fit(GROUPS.federation).adapt(np.ones((3, 20)), np.ones(3))
    with pytest.raises(ValueError, match="adapt needs the target"):
        LocalERM().fit(GROUPS.federation).adapt(Federation.from_clients([np.ones((3, 20))]))


@pytest.mark.parametrize("one", ["site", 0])
def test_a_fit_needs_a_site_for_each_row(one):
    with pytest.raises(ValueError, match="groups must name a site for each row"):
        ODCL(1).fit(GROUPS.federation.X, GROUPS.federation.y, groups=one)


def test_an_impossible_number_for_the_convex_path_is_explained():
    groups = make_logistic_groups(400, n_clients=12)
    with pytest.raises(ValueError, match=r"no penalty of the convex path gives 11 clusters"):
        ODCL(11, loss="logistic", clustering="convex").fit(groups.federation)


def test_a_target_or_sites_beside_a_federation_are_refused():
    data = GROUPS.federation
    own = "brings its own target and sites; build the Federation with it instead"
    with pytest.raises(ValueError, match=f"y was given beside a Federation, which {own}"):
        ODCL(1).fit(data, 1000 + data.y)
    with pytest.raises(ValueError, match=f"groups was given beside a Federation, which {own}"):
        ODCL(1).fit(data, groups=data.owner)
    with pytest.raises(ValueError, match="groups was given beside a Federation"):
        ODCL(1).fit(data, groups="site")
    fitted = ODCL(1).fit(data)
    with pytest.raises(ValueError, match="groups was given beside a Federation"):
        fitted.predict(data, groups="new")
    with pytest.raises(ValueError, match="y was given beside a Federation"):
        fitted.adapt(data, data.y)
