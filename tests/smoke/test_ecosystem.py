"""What people use beside: scikit-learn's checks, pipelines and searches, pandas, polars, wheels."""

import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import sklearn
from scipy.stats import multivariate_normal
from sklearn.model_selection import GridSearchCV, LeaveOneGroupOut, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from fedkin import FMLR, ODCL, FedAvgPolynomial, Federation, FedGMM, LocalERM, Standardizer

TOP = Path(__file__).parents[2]


def _reasons(estimator):
    if isinstance(estimator, FedGMM):
        exact = "y is a column of x to the last digit: no noise is left, and sites say so"
        return {"check_regressors_no_decision_function": exact}
    return {}


@parametrize_with_checks(
    [FedGMM(n_components=2, max_rounds=20), FedAvgPolynomial(2, max_rounds=20)],
    expected_failed_checks=_reasons,
)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_accepts_the_estimators(estimator, check):
    check(estimator)


def test_without_y_a_joint_mixture_tells_the_density_of_x():
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(-3, 1, size=(60, 2)), rng.normal(3, 2, size=(60, 2))])
    y = np.abs(X[:, 0]) + 0.3 * rng.normal(size=120)
    sites = np.where(np.arange(120) % 3 > 0, "a", "b")
    model = FedGMM(2, n_input_components=2, random_state=0).fit(X, y, groups=sites)
    told = model.score_samples(X, groups=sites)
    for k, site in enumerate(model.client_names_):
        weights = model.pair_weights_[k].sum(axis=1)
        density = sum(
            w * multivariate_normal(c, v).pdf(X[sites == site])
            for w, c, v in zip(weights, model.input_centers_, model.input_covariances_)
        )
        np.testing.assert_allclose(told[sites == site], np.log(density), rtol=1e-9)
    assert not np.allclose(told, model.score_samples(X, y, groups=sites))


def test_words_in_a_table_name_columns_and_remedy(rows):
    pandas = pytest.importorskip("pandas")
    X, y, sites = rows
    table = pandas.DataFrame({"a": X[:, 0], "colour": ["red", "blue"] * 60})
    with pytest.raises(ValueError, match=r"columns 'colour'\); Federation.from_frame"):
        LocalERM().fit(table, y, groups=sites)
    with pytest.raises(ValueError, match="groups names 5 rows, X has 120; name the site of each"):
        LocalERM().fit(X, y, groups=sites[:5])


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    sites = np.repeat([f"s{k}" for k in range(6)], 20)
    X = rng.normal(size=(120, 2)) * [1.0, 100.0]
    y = np.where(np.arange(120) < 60, 2.0, -1.0) * X[:, 0] + 0.1 * rng.normal(size=120)
    return X, y, sites


def test_frames_of_pandas_and_polars_are_rows_like_others(rows):
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    X, y, sites = rows
    plain = LocalERM().fit(X, y, groups=sites).predict(X, groups=sites)
    for table in (pandas.DataFrame(X, columns=["a", "b"]), polars.DataFrame(X, ["a", "b"])):
        model = LocalERM().fit(table, y, groups=sites)
        assert model.feature_names_in_.tolist() == ["a", "b"]
        np.testing.assert_array_equal(model.predict(table, groups=sites), plain)


def test_transformers_give_frames_where_asked(rows):
    X, y, sites = rows
    for library in ("pandas", "polars"):
        module = pytest.importorskip(library)
        table = module.DataFrame(dict(zip("ab", X.T)))
        scaler = Standardizer().set_output(transform=library).fit(table, groups=sites)
        made = scaler.transform(table)
        assert isinstance(made, module.DataFrame) and list(made.columns) == ["a", "b"]
    data = Federation.from_groups(X, sites, y)
    assert isinstance(Standardizer().fit(data).transform(data), Federation)


def test_pipelines_and_searches_reach_the_sites(rows):
    X, y, sites = rows
    pipe = make_pipeline(Standardizer(), FMLR(random_state=0))
    with sklearn.config_context(enable_metadata_routing=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search = GridSearchCV(pipe, {"fmlr__n_components": [1, 2]}, cv=LeaveOneGroupOut())
        search.fit(X, y, groups=sites)
        scores = cross_val_score(
            ODCL(2, random_state=0), X, y, params={"groups": sites}, cv=LeaveOneGroupOut()
        )
    assert len(scores) == 6 and search.best_estimator_.named_steps["fmlr"].n_features_in_ == 2


def test_notebooks_show_tables(rows):
    X, y, sites = rows
    data = Federation.from_groups(X, sites, y)
    assert repr(data) == "Federation(6 sites, 120 rows, 2 features, target 'y')"
    assert "<table>" in data._repr_html_()
    model = FMLR(2, random_state=0).fit(data)
    assert "<table>" in model.summary()._repr_html_() and "FMLR" in model._repr_html_()


def test_a_wheel_has_everything_it_needs(tmp_path):
    pytest.importorskip("hatchling")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=TOP,
        check=True,
        capture_output=True,
        timeout=120,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
        (entries,) = [n for n in names if n.endswith("entry_points.txt")]
        assert "fedkin = fedkin.cli:main" in packed.read(entries).decode()
    wanted = {"py.typed", "report/report.js", "report/report.css", "report/report.html.j2"}
    assert {f"fedkin/{name}" for name in wanted} <= names
    assert "fedkin/datasets/data/cmapss_fd001.npz" in names
