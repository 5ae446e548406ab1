"""Rivals with labels: all known is discriminant analysis, none known is what it was."""

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from fedkin import TGMM, FedEM, LocalEM, PooledEM

CENTERS = np.array([[0.0, 0.0], [2.0, 1.0], [-1.0, 2.0]])
NAMES = np.array(["low", "mid", "top"])


def drawn(seed=0, m=4, n=45):
    rng = np.random.default_rng(seed)
    owner, label = np.repeat(np.arange(m), n), np.tile(np.arange(n) % 3, m)
    own = CENTERS + 0.2 * rng.normal(size=(m, 3, 2))
    X = own[owner, label] + rng.normal(size=(m * n, 2)) @ np.array([[1.0, 0.4], [0.0, 0.7]])
    return X, NAMES[label], owner


def discriminant(X, y):
    return LinearDiscriminantAnalysis(solver="lsqr").fit(X, y)


def test_pooled_with_all_labels_is_discriminant_analysis():
    X, y, owner = drawn()
    found = PooledEM(covariance_type="tied", random_state=0).fit(X, y, groups=owner)
    wanted = discriminant(X, y)
    assert list(found.classes_) == list(NAMES)
    assert found.predict_proba(X, groups=owner) == pytest.approx(wanted.predict_proba(X), abs=1e-9)
    assert found.score(X, y, groups=owner) == pytest.approx(wanted.score(X, y))
    assert list(found.predict(X[:5], groups=owner[:5])) == list(wanted.predict(X[:5]))


def test_alone_with_all_labels_is_discriminant_analysis_of_every_site():
    X, y, owner = drawn()
    found = LocalEM(covariance_type="tied", random_state=0).fit(X, y, groups=owner)
    for k in range(4):
        here = owner == k
        wanted = discriminant(X[here], y[here]).predict_proba(X[here])
        assert found.predict_proba(X[here], groups=owner[here]) == pytest.approx(wanted, abs=1e-9)


def test_shared_classes_are_the_means_of_all_rows_and_those_of_sites_their_average():
    X, y, owner = drawn()
    classes = [y == name for name in NAMES]
    pooled = FedEM(average="pooled", random_state=0).fit(X, y, groups=owner)
    assert pooled.centers_ == pytest.approx(np.array([X[one].mean(axis=0) for one in classes]))
    each = np.array([[X[one & (owner == k)].mean(axis=0) for one in classes] for k in range(4)])
    plain = FedEM(random_state=0).fit(X, y, groups=owner)
    assert plain.centers_ == pytest.approx(each.mean(axis=0))
    some = TGMM(source_weight=0.4, random_state=0).fit(X, y, groups=owner)
    others = each.sum(axis=0) - each
    assert some.means_ == pytest.approx((each + 0.4 * others) / 2.2)


def test_some_labels_are_em_with_known_rows():
    """Beside plain EM in which a row with a label belongs to its group."""
    X, y, owner = drawn(1)
    known = np.arange(len(X)) % 5 == 0
    code = np.where(known, np.searchsorted(NAMES, y), -1)
    weights, means, fixed = np.full(3, 1 / 3), np.zeros((3, 2)), code >= 0
    for r in range(3):
        means[r] = X[code == r].mean(axis=0)
    for _ in range(3000):
        joint = np.log(weights) + np.stack(
            [multivariate_normal(mean).logpdf(X) for mean in means], axis=1
        )
        share = np.exp(joint - logsumexp(joint, axis=1, keepdims=True))
        share[fixed] = np.eye(3)[code[fixed]]
        weights, means = share.mean(axis=0), (share.T @ X) / share.sum(axis=0)[:, None]
    told = np.where(known, y, None)
    found = PooledEM(tol=1e-12, random_state=0).fit(X, told, groups=owner)
    assert found.centers_ == pytest.approx(means, abs=1e-4)
    assert found.weights_[0] == pytest.approx(weights, abs=1e-4)


@pytest.mark.parametrize("model", [FedEM(), TGMM(), LocalEM(), PooledEM()])
def test_labels_that_are_not_known_change_nothing_but_the_names(model):
    """A site without labels takes part; a fit without any has groups without names."""
    X, y, owner = drawn(2)
    told = np.where(owner == 0, None, y)
    found = model.set_params(random_state=0).fit(X, told, groups=owner)
    assert found.score(X[owner == 1], y[owner == 1], groups=owner[owner == 1]) > 0.7
    assert set(found.predict(X[owner == 0], groups=owner[owner == 0])) <= set(NAMES)
    again = model.set_params(n_components=3).fit(X, groups=owner)
    assert not hasattr(again, "classes_")
    assert set(again.predict(X, groups=owner)) <= {0, 1, 2}


def test_classes_nobody_has_labels_of_are_for_others():
    X, y, owner = drawn()
    with pytest.raises(ValueError, match="y has the labels of 3 groups; FedEM with labels needs"):
        FedEM(5).fit(X, y, groups=owner)
    found = LocalEM(4, random_state=0).fit(X, y, groups=owner)
    assert found.means_.shape == (4, 4, 2)
