"""Oracles: scikit-learn and exact rationals on all rows together, loops over groups."""

import statistics
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chi2
from sklearn.preprocessing import StandardScaler

from fedkin import Federation, InProcess, Standardizer
from fedkin.algorithms.standardizer import STANDARDIZER
from fedkin.models import moments
from fedkin.models.ward import ward_labels
from fedkin.randomness import name_keys


def ragged(n_sites=8, d=4, seed=0, least=1):
    """Ragged sites, each with rows of three groups that differ from site to site."""
    rng = np.random.default_rng(seed)
    mixing = rng.normal(size=(d, d))
    clients = {}
    for k in range(n_sites):
        n = int(rng.integers(least, 60))
        centres = 6 * rng.normal(size=(3, d))
        clients[f"s{k}"] = centres[rng.integers(3, size=n)] + rng.normal(size=(n, d)) @ mixing
    return Federation.from_clients(clients)


def within(data, rows, labels):
    """Covariance within the groups of every site, by loops."""
    scatter, degrees = np.zeros((rows.shape[1],) * 2), 0
    for k in range(len(data)):
        own = data.owner == k
        for g in np.unique(labels[own]):
            group = rows[own & (labels == g)]
            scatter += (group - group.mean(axis=0)).T @ (group - group.mean(axis=0))
            degrees += len(group) - 1
    return scatter / degrees


def groups_of_sites(data, fitted, n_groups):
    """Ward's groups of every site's standardised rows, site by site."""
    rows = (data.X - fitted.mean_) / fitted.scale_
    labels = np.zeros(len(rows), dtype=int)
    for k in range(len(data)):
        own = data.owner == k
        labels[own] = ward_labels(rows[own] - rows[own].mean(axis=0), n_groups)
    return rows, labels


# ------------------------------------------------------------------ means and scales


def test_three_rows_by_hand():
    fitted = Standardizer().fit(np.array([[1.0], [3.0], [5.0]]), groups=["a", "a", "b"])
    np.testing.assert_allclose(fitted.mean_, [3.0], rtol=1e-15)
    np.testing.assert_allclose(fitted.scale_, [np.sqrt(8 / 3)], rtol=1e-15)


@pytest.mark.parametrize("seed", range(5))
def test_sums_of_sites_equal_scikit_learn_on_all_rows(seed):
    data = ragged(seed=seed)
    fitted, pooled = Standardizer().fit(data), StandardScaler().fit(data.X)
    np.testing.assert_allclose(fitted.mean_, pooled.mean_, rtol=1e-12)
    np.testing.assert_allclose(fitted.scale_, pooled.scale_, rtol=1e-12)
    np.testing.assert_allclose(fitted.transform(data.X), pooled.transform(data.X), atol=1e-12)


def test_far_away_data_stay_exact():
    """A naive sum of squares about zero has no right digit here."""
    rng = np.random.default_rng(0)
    X = 1e8 + rng.normal(size=(400, 3)) * [1.0, 1e-3, 30.0]
    fitted = Standardizer().fit(X, groups=np.repeat(np.arange(8), 50))
    exact = [statistics.pstdev(column) for column in X.T.tolist()]
    np.testing.assert_allclose(fitted.scale_, exact, rtol=1e-12)
    np.testing.assert_allclose(fitted.mean_, [statistics.fmean(c) for c in X.T], rtol=1e-15)
    np.testing.assert_allclose(fitted.scale_, StandardScaler().fit(X).scale_, rtol=1e-12)


def test_sites_far_from_each_other_stay_exact():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(90, 2)) + np.repeat([-1e9, 0.0, 1e9], 30)[:, None]
    fitted = Standardizer().fit(X, groups=np.repeat(["a", "b", "c"], 30))
    np.testing.assert_allclose(
        fitted.scale_, [statistics.pstdev(c) for c in X.T.tolist()], rtol=1e-12
    )


def test_how_rows_are_spread_over_sites_is_irrelevant():
    data = ragged()
    one = Standardizer().fit(data)
    other = Standardizer().fit(data.X, groups=np.arange(len(data.X)) % 7)
    np.testing.assert_allclose(one.mean_, other.mean_, rtol=1e-12)
    np.testing.assert_allclose(one.scale_, other.scale_, rtol=1e-12)


@pytest.mark.parametrize("whiten", [False, True])
def test_empty_and_single_row_sites_count_for_what_they_are(whiten):
    rng = np.random.default_rng(2)
    rows = {"many": rng.normal(size=(30, 3)), "one": 5 + rng.normal(size=(1, 3))}
    fitted = Standardizer(whiten=whiten).fit(
        Federation.from_clients({**rows, "none": np.empty((0, 3))})
    )
    pooled = StandardScaler().fit(np.concatenate(list(rows.values())))
    np.testing.assert_allclose(fitted.mean_, pooled.mean_, rtol=1e-12)
    np.testing.assert_allclose(fitted.scale_, pooled.scale_, rtol=1e-12)
    assert {r.site for r in fitted.refusals_} == {"none"}
    if whiten:
        expected = np.cov(pooled.transform(rows["many"]).T)
        np.testing.assert_allclose(fitted.covariance_, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("value", [0.0, 0.1, -7.3, 1e8 + 0.1, 1e-30])
@pytest.mark.parametrize("robust", [False, True])
def test_a_constant_column_has_scale_one(value, robust):
    X = np.random.default_rng(0).normal(size=(1000, 2))
    X[:, 1] = value
    fitted = Standardizer(whiten=True, robust=robust).fit(X, groups=np.arange(1000) % 7)
    assert fitted.scale_[1] == 1.0 and fitted.scale_[0] != 1.0
    np.testing.assert_array_equal(fitted.whitening_[1], [0.0, 1.0])
    np.testing.assert_allclose(fitted.transform(X)[:, 1], 0.0, atol=1e-15 * max(1, abs(value)))


def test_a_column_that_varies_by_rounding_only_is_constant():
    X = np.random.default_rng(0).normal(size=(1000, 2))
    X[:, 1] = np.where(np.arange(1000) % 2, 0.3, 0.1 + 0.2)
    assert X[0, 1] != X[1, 1]
    fitted = Standardizer(whiten=True).fit(X, groups=np.arange(1000) % 7)
    assert fitted.scale_[1] == 1.0
    np.testing.assert_array_equal(fitted.whitening_[1], [0.0, 1.0])


def test_a_column_that_varies_between_sites_only_is_scaled_but_not_whitened():
    X = np.random.default_rng(0).normal(size=(60, 2))
    X[:, 1] = np.repeat([0.1, 0.2, 0.7], 20)
    fitted = Standardizer(whiten=True).fit(X, groups=np.repeat(["a", "b", "c"], 20))
    np.testing.assert_allclose(fitted.scale_[1], X[:, 1].std(), rtol=1e-12)
    np.testing.assert_array_equal(fitted.whitening_[1], [0.0, 1.0])


# ------------------------------------------------------------------ whitening


@pytest.mark.parametrize("n_groups", [None, 1, 3])
def test_covariance_within_groups_equals_a_loop_over_groups(n_groups):
    data = ragged()
    fitted = Standardizer(whiten=True, n_groups=n_groups).fit(data)
    rows, labels = groups_of_sites(data, fitted, n_groups or 1)
    expected = within(data, rows, labels)
    np.testing.assert_allclose(fitted.covariance_, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("n_groups", [None, 3])
def test_whitening_makes_the_covariance_within_groups_the_identity(n_groups):
    data = ragged(seed=3)
    fitted = Standardizer(whiten=True, n_groups=n_groups).fit(data)
    _, labels = groups_of_sites(data, fitted, n_groups or 1)
    white = within(data, fitted.transform(data).X, labels)
    np.testing.assert_allclose(white, np.eye(4), atol=1e-12)
    np.testing.assert_allclose(fitted.whitening_, fitted.whitening_.T, atol=1e-14)


@pytest.mark.parametrize("robust", [False, True])
def test_units_of_measurement_are_irrelevant(robust):
    data = ragged(seed=4)
    moved = replace(data, X=data.X * [1e3, 1e-4, 1.0, 7.0] + [5.0, 1.0, -1e3, 0.0])
    setting = {"whiten": True, "n_groups": 3, "robust": robust}
    one = Standardizer(**setting).fit(data).transform(data).X
    other = Standardizer(**setting).fit(moved).transform(moved).X
    np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


def test_order_of_columns_is_irrelevant():
    data, order = ragged(seed=5), [2, 0, 3, 1]
    turned = replace(data, X=np.ascontiguousarray(data.X[:, order]))
    one = Standardizer(whiten=True, n_groups=3).fit(data).transform(data).X
    other = Standardizer(whiten=True, n_groups=3).fit(turned).transform(turned).X
    np.testing.assert_allclose(one[:, order], other, rtol=1e-9, atol=1e-9)


def test_the_eigenvalue_floor_limits_the_stretch():
    whitening = moments.whitening_matrix(np.diag([4.0, 1e-12]))
    np.testing.assert_allclose(whitening, np.diag([0.5, 500.0]), rtol=1e-12)
    X = np.random.default_rng(0).normal(size=(50, 1)) * [1.0, 1.0]
    fitted = Standardizer(whiten=True).fit(X)
    np.testing.assert_allclose(np.linalg.cond(fitted.whitening_), 1e3, rtol=1e-6)


def test_fewer_rows_than_groups_is_an_error_and_few_rows_a_warning():
    X = np.random.default_rng(0).normal(size=(6, 4))
    sites = np.repeat(["a", "b"], 3)
    with pytest.raises(ValueError, match="lower n_groups"):
        Standardizer(whiten=True, n_groups=3).fit(X, groups=sites)
    with pytest.warns(UserWarning, match="there are 2; lower n_groups"):
        Standardizer(whiten=True, n_groups=2).fit(X, groups=sites)


def test_a_large_site_is_grouped_through_a_sample(monkeypatch):
    rng = np.random.default_rng(0)
    truth = rng.integers(3, size=400)
    X = 20.0 * np.eye(3)[truth] + rng.normal(size=(400, 3))
    data = Federation.from_groups(X, np.repeat(["a", "b"], [300, 100]))
    keys = name_keys(data.names, 0)
    whole = moments.ward_groups(data, X, 3, keys)
    monkeypatch.setattr(moments, "TREE_ROWS", 50)
    sampled = moments.ward_groups(data, X, 3, keys)
    for own in (slice(0, 300), slice(300, 400)):
        for labels in (whole, sampled):
            pairs = set(zip(labels[own].tolist(), truth[own].tolist()))
            assert len(pairs) == 3
    alone = moments.ward_groups(data.take([1]), X[300:], 3, keys[1:])
    np.testing.assert_array_equal(sampled[300:], alone)


def test_transform_can_be_undone():
    data = ragged(seed=6)
    for whiten in (False, True):
        fitted = Standardizer(whiten=whiten, n_groups=2).fit(data)
        back = fitted.inverse_transform(fitted.transform(data))
        np.testing.assert_allclose(back.X, data.X, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(
            fitted.inverse_transform(fitted.transform(data.X)), data.X, rtol=1e-10, atol=1e-10
        )


# ------------------------------------------------------------------ robust


def alike_sites(n_sites, n_rows, seed=0):
    rng = np.random.default_rng(seed)
    root = np.array([[2.0, 0.0, 0.0], [1.0, 0.5, 0.0], [0.0, 0.3, 1.0]])
    rows = rng.normal(size=(n_sites, n_rows, 3)) @ root + [1.0, 2.0, 3.0]
    return {f"s{k}": rows[k] for k in range(n_sites)}


def test_robust_equals_plain_at_one_site():
    X = np.random.default_rng(0).normal(size=(40, 3))
    plain, robust = Standardizer(whiten=True).fit(X), Standardizer(whiten=True, robust=True).fit(X)
    for name in ("mean_", "scale_", "whitening_"):
        np.testing.assert_allclose(getattr(robust, name), getattr(plain, name), rtol=1e-12)


@pytest.mark.parametrize("n_rows", [1, 2, 3, 50])
def test_robust_scale_is_low_by_the_median_of_a_chi_square_only(n_rows):
    """Within 3 %, four standard errors of the widest of these medians over 20,000 sites."""
    data = Federation.from_clients(alike_sites(20_000, n_rows))
    plain, robust = Standardizer().fit(data), Standardizer(robust=True).fit(data)
    within_site = 1.0 if n_rows == 1 else chi2.median(n_rows - 1) / (n_rows - 1)
    share = np.sqrt((1 - 1 / n_rows) * within_site + 1 / n_rows)
    assert share > 0.85
    np.testing.assert_allclose(robust.scale_, share * plain.scale_, rtol=0.03)


@pytest.mark.parametrize(
    "attack",
    [
        lambda X: X + 1e6,
        lambda X: 1e6 * X,
        lambda X: 0 * X,
        lambda X: X * [1.0, -1.0, 1.0],
        lambda X: X @ np.linalg.qr(np.arange(9.0).reshape(3, 3) ** 2 + np.eye(3))[0],
    ],
    ids=["moved", "scaled", "zeros", "mirrored", "turned"],
)
def test_contaminated_sites_do_not_spoil_the_robust_result(attack):
    rows = alike_sites(20, 80)
    clean = Federation.from_clients(dict(list(rows.items())[6:]))
    bad = {name: attack(X) if k < 6 else X for k, (name, X) in enumerate(rows.items())}
    spoilt = Federation.from_clients(bad)
    truth = Standardizer(whiten=True).fit(clean)
    robust = Standardizer(whiten=True, robust=True).fit(spoilt)
    plain = Standardizer(whiten=True).fit(spoilt)

    def harm(fitted):
        """Of mean, scale, and the covariance within clean sites after whitening."""
        white = within(clean, fitted.transform(clean).X, np.zeros(len(clean.X), dtype=int))
        return (
            np.abs((fitted.mean_ - truth.mean_) / truth.scale_).max(),
            np.abs(np.log(fitted.scale_ / truth.scale_)).max(),
            np.linalg.norm(white - np.eye(3), ord=2),
        )

    assert (np.array(harm(robust)) < (0.15, 0.1, 0.06)).all()
    assert max(harm(plain)) > 0.35


def test_odd_sites_are_named_and_alike_ones_kept():
    rows = alike_sites(20, 80, seed=1)
    rows["s3"] = rows["s3"] * 10
    fitted = Standardizer(whiten=True, robust=True).fit(Federation.from_clients(rows))
    assert list(fitted.odd_sites_) == ["s3"]
    assert list(fitted.summary()["sites"]["odd"]).count(True) == 1


def test_a_column_that_varies_at_few_sites_is_scaled_by_those():
    rng = np.random.default_rng(0)
    X = np.zeros((100, 1))
    X[:20, 0] = rng.normal(size=20) * 50
    fitted = Standardizer(robust=True).fit(X, groups=np.repeat(np.arange(10), 10))
    np.testing.assert_allclose(fitted.scale_, [50.0], rtol=0.5)


@pytest.mark.parametrize("robust", [False, True])
def test_a_site_that_claims_no_rows_is_not_divided_by(robust):
    def lying(clients, *rest):
        reply, memory = STANDARDIZER.steps["moments"].function(clients, *rest)
        rows = reply["rows"].copy()
        rows[clients.names.index("s1")] = 0.0
        return {**reply, "rows": rows}, memory

    steps = dict(STANDARDIZER.steps)
    steps["moments"] = replace(steps["moments"], function=lying)
    data = Federation.from_clients(alike_sites(5, 30))
    settings = STANDARDIZER.settings(robust=robust)
    found = InProcess().run(replace(STANDARDIZER, steps=steps), settings, data, 0).result
    honest = data.take([0, 2, 3, 4])
    expected = InProcess().run(STANDARDIZER, settings, honest, 0).result
    np.testing.assert_allclose(found["mean"], expected["mean"], rtol=1e-12)
    np.testing.assert_allclose(found["scale"], expected["scale"], rtol=1e-12)


# ------------------------------------------------------------------ rounds


def test_two_rounds_or_three_and_only_sums_travel():
    data = ragged(n_sites=5)
    plain, white = Standardizer().fit(data), Standardizer(whiten=True, n_groups=2).fit(data)
    assert plain.n_rounds_ == 2 and white.n_rounds_ == 3
    assert plain.traffic_.bytes_up == 5 * 8 * (4 + 1 + 4 + 4)
    assert white.traffic_.bytes_up == plain.traffic_.bytes_up + 5 * 8 * (16 + 1)


def test_a_site_that_never_answers_is_waited_for_once():
    engine = InProcess(absent=lambda number, names: ["s2"])
    fitted = Standardizer(whiten=True, engine=engine).fit(ragged())
    assert fitted.n_rounds_ == 1 + 4 + 1
    data = ragged()
    others = Standardizer(whiten=True).fit(data.take([0, 1, 3, 4, 5, 6, 7]))
    np.testing.assert_allclose(fitted.whitening_, others.whitening_, rtol=1e-12)
