import numpy as np
import pytest

from fedkin.datasets import (
    make_flipped_images,
    make_logistic_groups,
    make_sparse_regressions,
    spoil_sites,
)
from fedkin.datasets.odcl import APPENDIX_D2, LOGISTIC_COVARIANCES, SECTION_5


def test_section_5_has_ten_balanced_kinds_and_five_features_a_row():
    groups = make_sparse_regressions(50, random_state=0)
    assert groups.coef.shape == (10, 20) and len(groups.federation) == 100
    for (low, high), coef in zip(SECTION_5, groups.coef):
        assert low <= coef.min() and coef.max() <= high
    assert set(np.bincount(groups.labels)) == {10}
    assert ((groups.federation.X != 0).sum(axis=1) == 5).all()
    noise = groups.federation.y - np.einsum(
        "nd,nd->n", groups.federation.X, groups.site_coef[groups.federation.owner]
    )
    assert abs(noise.std() - 1) < 0.05 and abs(noise.mean()) < 0.05


def test_names_stand_in_the_order_of_the_labels():
    """Names are numbers; a hundred and one sites must not sort as text."""
    groups = make_sparse_regressions(5, n_clients=101, intervals=APPENDIX_D2, random_state=0)
    assert groups.federation.names[:3] == ("1", "2", "3")
    exact = make_sparse_regressions(400, n_clients=101, intervals=APPENDIX_D2, random_state=0)
    for k in (0, 10, 100):
        X, y = exact.federation.client(k)
        fitted = np.linalg.lstsq(X, y, rcond=None)[0]
        assert np.linalg.norm(exact.coef - fitted, axis=1).argmin() == exact.labels[k]


def test_logistic_features_have_the_stated_covariances():
    groups = make_logistic_groups(4000, n_clients=4, random_state=0)
    np.linalg.cholesky(LOGISTIC_COVARIANCES)  # all four are covariances
    printed = np.array([[1.0, 2.0], [2.0, 1.0]])
    values, vectors = np.linalg.eigh(printed)
    absolute = vectors @ np.diag(np.abs(values)) @ vectors.T
    np.testing.assert_allclose(LOGISTIC_COVARIANCES[2], absolute)
    for k in range(4):
        X, y = groups.federation.client(k)
        np.testing.assert_allclose(np.cov(X.T), LOGISTIC_COVARIANCES[k], atol=0.2)
        assert set(y) == {-1.0, 1.0}


def test_error_and_recovery_are_what_they_say():
    groups = make_sparse_regressions(5, n_clients=8, intervals=APPENDIX_D2)
    assert groups.error(groups.site_coef) == 0.0
    assert groups.error(np.zeros((8, 20))) == pytest.approx(1.0)
    assert groups.recovers((groups.labels + 1) % 4)
    assert not groups.recovers(np.zeros(8)) and not groups.recovers(np.arange(8))
    start = groups.nearby(1 / 6, 1 / 4, 3)
    away = np.linalg.norm(start - groups.coef, axis=1) / groups.separation()
    assert (away >= 1 / 6).all() and (away <= 1 / 4).all()


@pytest.mark.parametrize("kind", ["wild", "shifted"])
def test_spoilt_sites_are_those_marked(kind):
    clean = make_sparse_regressions(400, n_clients=20, random_state=0)
    spoilt = spoil_sites(clean, 0.2, kind, 5)
    changed = [
        not np.array_equal(clean.federation.client(k)[1], spoilt.federation.client(k)[1])
        for k in range(20)
    ]
    np.testing.assert_array_equal(changed, spoilt.labels < 0)
    assert sum(changed) == 4
    k = int(np.flatnonzero(changed)[0])
    X, y = spoilt.federation.client(k)
    moved = np.linalg.norm(np.linalg.lstsq(X, y, rcond=None)[0] - clean.site_coef[k])
    if kind == "shifted":
        assert moved == pytest.approx(clean.separation(), rel=0.1)
    else:
        assert moved > 40


def test_images_are_dealt_once_flipped_at_half_the_sites_and_wrong_where_asked():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (300, 2, 2)).astype(np.uint8)
    names = np.repeat([0, 1, 2], 100)
    task = make_flipped_images((images, names), (images, names), (1, 2), 5, 10, random_state=1)
    assert task.federation.X.max() <= 1.0 and task.federation.X.shape == (100, 4)
    assert set(task.federation.sizes) == {10} and len(task.y_test) == 200
    lookup = {tuple(image.ravel() / 255.0): name for image, name in zip(images, names)}
    for k in range(10):
        X, y = task.federation.client(k)
        first = np.array([lookup[tuple(row)] for row in X]) == 1
        np.testing.assert_array_equal(y > 0, first == (task.labels[k] == 0))
    noisy = make_flipped_images(
        (images, names), (images, names), (1, 2), 5, 10, flipped=0.2, random_state=1
    )
    differ = (noisy.federation.y != task.federation.y).reshape(10, 10).sum(axis=1)
    assert set(differ) == {2}


def test_accuracy_counts_a_sites_own_naming():
    images = np.array([[[255]], [[0]]] * 10, dtype=np.uint8)
    names = np.array([0, 1] * 10)
    task = make_flipped_images((images, names), (images, names), (0, 1), 2, 4)
    # One pixel: class 0 is bright. A positive score for all is right for half the images.
    assert task.accuracy(np.ones((4, 1))) == pytest.approx(0.5)
