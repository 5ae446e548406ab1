import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from fedkin import FMLR, Federation, Standardizer
from fedkin.datasets import load_pendigits, make_regression_groups
from fedkin.datasets.fmlr import PAPER_COEF


@parametrize_with_checks([Standardizer(), Standardizer(robust=True)])
def test_scikit_learn_accepts_the_estimator(estimator, check):
    check(estimator)


ONE_ROW = {"check_fit2d_1sample": "one row has no scatter; the error says what is missing"}


@parametrize_with_checks(
    [Standardizer(whiten=True, n_groups=2)], expected_failed_checks=lambda estimator: ONE_ROW
)
@pytest.mark.filterwarnings("ignore:whitening .* features needs as many rows")
def test_scikit_learn_accepts_the_whitening_estimator(estimator, check):
    check(estimator)


def test_a_federation_stays_one_with_names_and_target():
    data = make_regression_groups(6, 12, PAPER_COEF[2], random_state=0).federation
    moved = Standardizer().fit_transform(data)
    assert isinstance(moved, Federation)
    assert moved.names == data.names and moved.feature_names == data.feature_names
    np.testing.assert_array_equal(moved.y, data.y)
    np.testing.assert_array_equal(moved.offsets, data.offsets)
    np.testing.assert_allclose(moved.X.mean(axis=0), 0.0, atol=1e-14)
    with pytest.raises(ValueError, match="the fit had"):
        Standardizer().fit(data.X[:, 1:]).transform(data)


def test_columns_of_a_federation_are_known_by_their_names():
    X, sites = np.array([[1.0, 200.0], [3.0, 100.0], [8.0, 600.0]]), ["a", "a", "b"]
    fitted = Standardizer().fit(Federation.from_groups(X, sites, feature_names=["age", "dose"]))
    turned = Federation.from_groups(X[:, ::-1], sites, feature_names=["dose", "age"])
    moved = fitted.transform(turned)
    assert tuple(moved.feature_names) == ("age", "dose")
    np.testing.assert_allclose(moved.X, (X - fitted.mean_) / fitted.scale_)
    back = fitted.inverse_transform(
        Federation.from_groups(moved.X[:, ::-1], sites, feature_names=["dose", "age"])
    )
    np.testing.assert_allclose(back.X, X)
    other = Federation.from_groups(X, sites, feature_names=["age", "weight"])
    for change in (fitted.transform, fitted.inverse_transform):
        with pytest.raises(ValueError, match="lacks dose has besides weight"):
            change(other)


def test_a_second_fit_keeps_nothing_of_the_first():
    X, sites = np.arange(12.0).reshape(6, 2) ** 2, [*"aabbbb"]
    named = Federation.from_groups(X, sites, feature_names=["age", "dose"])
    fitted = Standardizer(whiten=True).fit(named)
    fitted.set_params(whiten=False).fit(Federation.from_groups(X, sites))
    alone = Standardizer().fit(Federation.from_groups(X, sites))
    assert set(vars(fitted)) == set(vars(alone))
    assert not hasattr(fitted, "feature_names_in_") and fitted.whitening_ is None


def test_a_pipeline_carries_a_federation():
    data = make_regression_groups(20, 12, PAPER_COEF[2], random_state=0).federation
    whole = make_pipeline(Standardizer(), FMLR(2, random_state=0)).fit(data)
    alone = FMLR(2, random_state=0).fit(data)
    np.testing.assert_array_equal(whole[-1].labels_, alone.labels_)
    np.testing.assert_allclose(whole.predict(data), alone.predict(data), atol=1e-4)


def test_frames_come_and_go_with_their_names():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame({"age": [1.0, 2.0, 4.0], "dose": [0.0, 1.0, 5.0]}, index=[7, 8, 9])
    fitted = Standardizer().set_output(transform="pandas").fit(frame, groups=["a", "a", "b"])
    found = fitted.transform(frame)
    assert list(found.columns) == ["age", "dose"] and list(found.index) == [7, 8, 9]
    np.testing.assert_allclose(found["age"], (frame["age"] - 7 / 3) / frame["age"].std(ddof=0))
    assert list(fitted.get_feature_names_out()) == ["age", "dose"]


def test_metadata_routing_and_cloning_work():
    with sklearn.config_context(enable_metadata_routing=True):
        estimator = Standardizer().set_fit_request(groups=True)
        assert estimator.get_metadata_routing().fit.requests["groups"] is True
    assert clone(Standardizer(whiten=True, n_groups=3)).get_params()["n_groups"] == 3


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="n_groups must be at least 1"):
        Standardizer(whiten=True, n_groups=0).fit(np.ones((3, 2)))
    with pytest.raises(ValueError, match="fit needs data"):
        Standardizer().fit()


def test_the_summary_prints_and_says_what_left_the_sites():
    fitted = Standardizer(whiten=True).fit(np.arange(12.0).reshape(6, 2) ** 2, groups=[*"aabbbb"])
    text = str(fitted.summary())
    assert "2 sites, 2 features, 6 rows" in text and "Groups stayed at the site" in text
    assert fitted.summary()._repr_html_().count("<table>") == 3
    assert "Groups stayed" not in str(Standardizer().fit(np.ones((2, 2))).summary())


def test_groups_found_at_the_sites_whiten_pen_digits_nearly_as_well_as_the_digits_would():
    """Covariance within digits after whitening: eigenvalues apart by a standard deviation of the
    logarithm of 1.17 without it, 0.81 with all rows as one group, 0.19 measured with ten groups."""
    pen = load_pendigits()
    data = pen.federation(labelled=True)

    def unevenness(rows):
        means = {}
        about = np.empty_like(rows)
        for key in np.unique(data.owner * 10 + data.y.astype(int)):
            own = (data.owner * 10 + data.y.astype(int)) == key
            means[key] = rows[own].mean(axis=0)
            about[own] = rows[own] - means[key]
        return np.std(np.log(np.linalg.eigvalsh(about.T @ about)))

    plain = Standardizer().fit(data)
    white = Standardizer(whiten=True, n_groups=10).fit(data)
    assert unevenness(plain.transform(data).X) > 1.0
    assert unevenness(white.transform(data).X) < 0.22
