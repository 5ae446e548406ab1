"""Many small matrices at once, against LAPACK one by one."""

import numpy as np
import pytest
from scipy.stats import wishart

from fedkin.models import packed_matrices, small_matrices

SIZES = (1, 2, 3, 7, small_matrices.MOST_COLUMNS + 1)


@pytest.fixture(autouse=True, params=["at once", "in pieces", "one by one"])
def way(request, monkeypatch):
    if request.param != "one by one":
        monkeypatch.setattr(small_matrices, "LEAST_MATRICES", 1)
    if request.param == "in pieces":
        monkeypatch.setattr(small_matrices, "CHUNK_ELEMENTS", 30)


def matrices(d, shape, seed=0):
    n = int(np.prod(shape))
    made = wishart(d + 3, np.diag(np.geomspace(1e-3, 1e3, d))).rvs(n, random_state=seed)
    return np.reshape(made, (*shape, d, d))


@pytest.mark.parametrize("d", SIZES)
def test_inverse_roots_make_covariances_the_identity(d):
    covariances = matrices(d, (5, 2))
    roots = small_matrices.inverse_roots(covariances)
    wanted = np.linalg.inv(np.linalg.cholesky(covariances))
    np.testing.assert_allclose(np.tril(roots), np.tril(wanted), rtol=1e-9)
    assert np.abs(np.triu(roots, 1)).max() <= 1e-12 * np.abs(roots).max()


def test_no_matrices_have_no_roots():
    assert small_matrices.inverse_roots(np.empty((0, 3, 3))).shape == (0, 3, 3)


def test_a_matrix_that_is_not_positive_definite_is_an_error():
    spoilt = matrices(3, (4,))
    spoilt[2, 1, 1] = -1.0
    with pytest.raises(np.linalg.LinAlgError):
        small_matrices.inverse_roots(spoilt)


@pytest.mark.parametrize("d", SIZES)
def test_determinants_beside_any_multiple_of_a_covariance(d):
    """From one tridiagonal form: every multiple at the cost of one."""
    scatter, covariances = matrices(d, (6, 2)), matrices(d, (2,), seed=1)
    scatter[3] = 0.0
    roots = small_matrices.inverse_roots(covariances)
    form = small_matrices.tridiagonal(packed_matrices.packed(scatter, "full"), roots)
    for multiple in (np.array([1.0, 40.0]), np.array([1e5, 3.0])):
        found = small_matrices.log_determinants(form, multiple)
        whole = multiple[:, None, None] * covariances + scatter
        wanted = np.linalg.slogdet(whole)[1] - np.linalg.slogdet(covariances)[1]
        np.testing.assert_allclose(found, wanted, atol=1e-9)


@pytest.mark.parametrize("d", SIZES)
def test_traces_of_what_is_not_known_beside_covariances(d):
    covariances, rng = matrices(d, (6, 2)), np.random.default_rng(2)
    directions, lengths = rng.normal(size=(2, d, d)), rng.random((6, 2, d))
    found = small_matrices.traces(packed_matrices.packed(covariances, "full"), directions, lengths)
    doubt = np.einsum("rij,mrj,rkj->mrik", directions, lengths, directions)
    wanted = np.einsum("mrij,mrji->mr", np.linalg.inv(covariances), doubt)
    np.testing.assert_allclose(found, wanted, rtol=1e-8)


@pytest.mark.parametrize("far", [1.0, 1e6, 1e12])
def test_directions_without_scatter_are_not_below_nothing(far):
    """Rows in one direction, far away: rounding must not make a determinant negative."""
    away = far * np.array([1.0, 2.0, -3.0, 0.1])
    scatter = np.outer(away, away)[None, None]
    form = small_matrices.tridiagonal(packed_matrices.packed(scatter, "full"), np.eye(4)[None])
    found = small_matrices.log_determinants(form, np.array([2.0]))[0, 0]
    assert found >= 4 * np.log(2.0)
    if far < 1e7:
        assert found == pytest.approx(3 * np.log(2.0) + np.log(2.0 + away @ away), abs=0.01)


@pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical", "identity"])
def test_packed_products_are_those_of_a_kind(kind):
    vectors = np.random.default_rng(0).normal(size=(2, 5, 4))
    wanted = packed_matrices.packed(vectors[..., None] * vectors[..., None, :], kind)
    np.testing.assert_allclose(packed_matrices.products(vectors, vectors, kind), wanted)
    by_row = np.empty((2, wanted.shape[-1], 5))
    packed_matrices.products_of_rows(vectors.swapaxes(1, 2), kind, by_row)
    np.testing.assert_allclose(by_row.swapaxes(1, 2), wanted)
    assert wanted.shape[-1] == packed_matrices.n_numbers(kind, 4)
