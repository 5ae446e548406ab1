"""How sure of a class FedGrEM is: temperatures by labels of sites that were left out."""

import numpy as np
import pytest
from scipy.special import log_softmax

from fedkin import Federation, FedGrEM
from fedkin.algorithms.mixtures import sureness
from fedkin.algorithms.mixtures.sureness import dealt, likeliest_temperature, together
from fedkin.engines.inprocess import InProcess
from fedkin.models import gaussian_mixture as gaussian
from fedkin.models import shaped_mixture as shaped
from fedkin.models.shaped_mixture import TEMPERATURES

N_CLASSES, D, M = 3, 3, 12


def people(tails=np.inf, m=M, n=40, seed=0):
    """Rows, classes and sites; classes overlap, rows have tails of so many degrees of freedom."""
    rng = np.random.default_rng(seed)
    centers = 1.5 * rng.normal(size=(N_CLASSES, D))
    site = np.repeat(np.arange(m), n)
    y = rng.integers(0, N_CLASSES, m * n)
    own = centers + 0.3 * rng.normal(size=(m, N_CLASSES, D))
    length = 1.0 if np.isinf(tails) else np.sqrt(tails / rng.chisquare(tails, (m * n, 1)))
    return own[site, y] + length * rng.normal(size=(m * n, D)), y, site


def loss(model, X, y, site):
    found = model.predict_proba(X, groups=site)
    return float(-np.log(np.maximum(found[np.arange(len(y)), y], 1e-12)).mean())


def fitted(rows, share=1.0, **options):
    X, y, site = rows
    known = np.random.default_rng(9).random(len(y)) < share
    model = FedGrEM(N_CLASSES, covariance_type="full", random_state=0, **options)
    return model.fit(X, np.where(known, y, -1), groups=site)


# --- what a site tells ---------------------------------------------------------------------------


def test_a_site_tells_the_log_probability_of_its_labels_at_every_temperature():
    X, y, site = people(m=3, n=5)
    y = np.where(np.arange(len(y)) % 4 == 0, -1, y).astype(float)
    y[site == 1] = -1.0
    clients = Federation.from_groups(X, site, y=y)
    rng = np.random.default_rng(1)
    groups = shaped.Groups(
        np.full((3, 1, N_CLASSES), 1 / 3),
        rng.normal(size=(3, 1, N_CLASSES, D)),
        np.tile(np.eye(D), (3, 1, N_CLASSES, 1, 1)),
    )
    joint = shaped.log_joint(gaussian.prepare(clients), groups)
    found = shaped.foretold(joint, clients.y, clients.owner, 3)
    for k in range(3):
        for place, temperature in enumerate(TEMPERATURES):
            own = [i for i in range(len(y)) if clients.owner[i] == k and clients.y[i] >= 0]
            wanted = sum(log_softmax(joint[i] / temperature)[int(clients.y[i])] for i in own)
            assert found[k, place] == pytest.approx(wanted, abs=1e-12)
    assert (found[1] == 0).all()


# --- what the server makes of it -----------------------------------------------------------------


def test_the_likeliest_temperature_lies_between_those_that_were_tried():
    logs = np.log(TEMPERATURES)
    curve = -1e6 * np.square(logs - np.log(3.3))
    assert likeliest_temperature(curve) == pytest.approx(3.3, rel=1e-4)
    assert likeliest_temperature(-curve[::-1] * 0.0) == 1.0
    assert likeliest_temperature(-1e6 * logs) == 1.0
    assert likeliest_temperature(1e6 * logs) == TEMPERATURES[-1]


def test_few_labels_do_not_lead_to_the_last_temperature():
    logs = np.log(TEMPERATURES)
    assert 1.0 < likeliest_temperature(0.5 * logs) < 4.0


def test_every_part_has_labels_of_classes_that_several_sites_have():
    counts = np.zeros((20, 4))
    counts[np.arange(16), np.arange(16) % 4] = 1.0
    part = dealt(counts, 4)
    for k in range(4):
        assert (counts[part == k].sum(axis=0) == 1).all()
    assert (np.bincount(part) == 5).all()


def test_sites_without_labels_make_no_parts():
    assert (dealt(np.zeros((6, 2)), 5) == 0).all()
    assert (dealt(np.eye(6)[:, :1] * 3.0, 5) == 0).all()


def test_one_site_that_lies_hardly_moves_the_temperature():
    rng = np.random.default_rng(2)
    logs = np.log(TEMPERATURES)
    each = -5.0 * np.square(logs - np.log(2.0 + rng.random((15, 1))))
    labels = np.full(15, 10.0)
    honest = likeliest_temperature(together(each, labels))
    assert honest == pytest.approx(likeliest_temperature(each.sum(axis=0)), rel=0.02)
    lie = 1e9 * logs
    lied = likeliest_temperature(together(np.vstack([each, lie]), np.append(labels, 1e9)))
    assert lied < 1.6 * honest
    assert likeliest_temperature(np.vstack([each, lie]).sum(axis=0)) == TEMPERATURES[-1]


# --- fits ----------------------------------------------------------------------------------------


def test_probabilities_that_are_right_stay_as_they_are():
    assert fitted(people(n=60)).temperature_ < 1.25


@pytest.mark.parametrize("share", [0.3, 0.1])
def test_classes_with_long_tails_are_told_less_surely_and_no_otherwise(share):
    # With all labels wide covariances are unsure enough; with few, rows settle in wrong groups.
    model = fitted(people(tails=2.5), share)
    new = people(tails=2.5, n=200)
    groups, cooled = model.predict(new[0], groups=new[2]), loss(model, *new)
    assert model.temperature_ > 1.3
    # From sites of the fit, whose places `people` draws before any row.
    model.temperature_ = 1.0
    assert (model.predict(new[0], groups=new[2]) == groups).all()
    assert cooled < loss(model, *new)


def test_densities_do_not_know_of_temperatures():
    rows = people(tails=2.5)
    model = fitted(rows)
    before = model.score_samples(rows[0], groups=rows[2])
    model.temperature_ = 1.0
    assert (model.score_samples(rows[0], groups=rows[2]) == before).all()


def test_labels_of_one_site_say_nothing_of_others():
    X, y, site = people(m=4)
    model = FedGrEM(N_CLASSES, covariance_type="full", random_state=0)
    assert model.fit(X, np.where(site == 0, y, -1), groups=site).temperature_ == 1.0
    assert model.fit(X[site == 0], y[site == 0], groups=site[site == 0]).temperature_ == 1.0


def test_a_fit_without_labels_has_no_temperature():
    X, _, site = people(m=4)
    model = fitted(people(m=4))
    assert hasattr(model, "temperature_")
    model.fit(X, groups=site)
    assert not hasattr(model, "temperature_")
    np.testing.assert_allclose(model.predict_proba(X, groups=site).sum(axis=1), 1.0)


def test_sites_with_rules_tell_of_labels_only_if_they_have_many():
    rows = people(tails=2.5, n=150)
    rules = {"engine": InProcess(disclosure="enforce", progress=False)}
    free, ruled = fitted(rows), fitted(rows, **rules)
    assert ruled.temperature_ == pytest.approx(free.temperature_, rel=0.1)
    assert fitted(rows, 0.03, **rules).temperature_ == 1.0


def test_a_part_that_lacks_a_class_begins_with_the_fit_s(monkeypatch):
    X, y, site = people(tails=2.5)
    labels = np.where((y == 2) & (site != 0), -1, y)
    seen = []
    whole = sureness._with_others

    def spy(first, other, lacking):
        seen.append((whole(first, other, lacking), first, other, lacking))
        return seen[-1][0]

    monkeypatch.setattr(sureness, "_with_others", spy)
    model = FedGrEM(N_CLASSES, covariance_type="full", random_state=0).fit(X, labels, groups=site)
    assert np.isfinite(model.temperature_)
    lacking = [one for one in seen if one[3].any()]
    assert len(lacking) == 1 and lacking[0][3].tolist() == [False, False, True]
    made, first, other, _ = lacking[0]
    assert (made.centers[2] == other.centers[2]).all()
    assert (made.centers[:2] == first.centers[:2]).all()
