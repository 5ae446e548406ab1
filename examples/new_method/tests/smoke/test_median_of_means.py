import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from fedkin import Federation, MedianOfMeans

ONE_ROW = {"check_fit2d_1sample": "the mean of one row is that row; the error says so"}


@parametrize_with_checks([MedianOfMeans()], expected_failed_checks=lambda estimator: ONE_ROW)
def test_scikit_learn_accepts_the_estimator(estimator, check):
    check(estimator)


def sites(*centers, n_rows=20):
    rng = np.random.default_rng(0)
    return Federation.from_clients([(c + rng.normal(size=(n_rows, 2))) for c in centers])


def test_a_minority_of_sites_cannot_move_the_centre_far():
    alike = MedianOfMeans().fit(sites(0, 0, 0, 0, 0)).center_
    moved = MedianOfMeans().fit(sites(0, 0, 0, 1e9, 1e9)).center_
    assert np.abs(moved - alike).max() < 1.0


def test_a_site_counts_as_often_as_it_has_rows_or_once():
    X, names = np.array([[0.0], [0.0], [1.0], [1.0], *[[5.0]] * 6]), [*"aabb", *"cccccc"]
    assert MedianOfMeans().fit(X, groups=names).center_ == 5.0
    assert MedianOfMeans("equal").fit(X, groups=names).center_ == 1.0


def test_absurd_rows_are_clipped_at_the_site():
    X, names = np.array([[1.0], [2.0], [3.0], [1e12]]), ["a"] * 4
    assert MedianOfMeans(clip=6.0).fit(X, groups=names).center_ == 3.0
    with pytest.raises(ValueError, match="clip must be above 0"):
        MedianOfMeans(clip=-1.0).fit(X, groups=names)


def test_a_site_with_one_row_stays_silent():
    fitted = MedianOfMeans().fit([[0.0], [2.0], [77.0]], groups=["a", "a", "tiny"])
    assert [refusal.site for refusal in fitted.refusals_] == ["tiny"]
    assert fitted.center_ == 1.0 and np.isnan(fitted.site_distances_[1])


def test_a_federation_is_moved_as_one_and_the_summary_says_what_left():
    data = sites(3.0, 4.0, 5.0)
    fitted = MedianOfMeans().fit(data)
    np.testing.assert_allclose(fitted.transform(data).X, fitted.transform(data.X))
    assert "sent its number of rows and its columns' means" in str(fitted.summary())
