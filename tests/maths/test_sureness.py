"""How sure of a class FedGrEM is, and what tells of a site's classes where few rows have labels."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import log_softmax, logsumexp, softmax

from fedkin import Federation, FedGrEM, load
from fedkin.algorithms.mixtures import sureness
from fedkin.algorithms.mixtures.departures import Departure
from fedkin.algorithms.mixtures.fedgrem import FEDGREM
from fedkin.algorithms.mixtures.foretold import FOLDS, label_folds, surprise
from fedkin.algorithms.mixtures.sureness import (
    dealt,
    likeliest_temperature,
    together,
)
from fedkin.engines.inprocess import InProcess
from fedkin.models import gaussian_mixture as gaussian
from fedkin.models import shaped_mixture as shaped
from fedkin.models.packed_matrices import packed
from fedkin.models.shaped_mixture import TEMPERATURES
from fedkin.protocol import MISFIT
from fedkin.shrinkage import borrowed

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


def known(n, share):
    return np.random.default_rng(9).random(n) < share


def fitted(rows, share=1.0, **options):
    X, y, site = rows
    options = {"covariance_type": "full", **options}
    model = FedGrEM(N_CLASSES, random_state=0, **options)
    return model.fit(X, np.where(known(len(y), share), y, -1), groups=site)


def by_all_rows(model):
    """A fit in which labelled rows alone have no say."""
    model.labelled_share_ = model.new_site_labelled_share_ = 0.0
    return model


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


def test_labels_of_a_class_are_dealt_to_all_folds():
    rng = np.random.default_rng(0)
    owner = np.sort(rng.integers(0, 3, 90))
    labels = rng.integers(-1, 2, 90).astype(float)
    fold = label_folds(labels, owner)
    for k, label in np.ndindex(3, 2):
        dealt_to = np.bincount(fold[(owner == k) & (labels == label)], minlength=FOLDS)
        assert dealt_to.max() - dealt_to.min() <= 1
    assert label_folds(np.empty(0), np.empty(0, dtype=int)).shape == (0,)


@pytest.mark.parametrize("kind", ["full", "diag", "tied"])
@pytest.mark.parametrize("moved", [False, True])
def test_left_out_labels_are_foretold_by_the_others_and_what_is_common(kind, moved):
    X, y, site = people(m=4, n=9)
    y = np.where((np.arange(len(y)) % 4 == 0) | (site == 2), -1, y).astype(float)
    clients = Federation.from_groups(X, site, y=y)
    rng, parts = np.random.default_rng(3), np.array([0, 1, 1, 0])
    each = []
    for _ in range(2):
        root = rng.normal(size=(N_CLASSES, D, D))
        covariances = root @ root.swapaxes(1, 2) + np.eye(D)
        covariances = covariances if kind == "full" else covariances * np.eye(D)
        covariances = np.stack([covariances[0]] * 3) if kind == "tied" else covariances
        parts_of_common = (
            *(rng.normal(size=(N_CLASSES, D)), 0.3 * covariances, covariances),
            *(np.full(N_CLASSES, 7.0), np.array([1.0, 2.0, 3.0]), np.array(12.0)),
            np.array([40.0, 50.0, 60.0]),
        )
        each.append(borrowed.Common(*parts_of_common, 0.2 * np.eye(D) * moved))
    common = dict(zip(borrowed.Common._fields, map(np.stack, zip(*each))))
    without = {name: array[parts][:, None] for name, array in common.items()}
    without |= {"alike": np.full((4, 1), float(kind == "tied")), "own_weights": np.zeros(4)}
    without |= {"part": parts.astype(float)}
    settings = FEDGREM.settings(n_components=3, covariance_type=kind, labels=True)
    data = gaussian.prepare(clients, True)
    asked = settings, {}, without, None, None
    found = surprise(clients, data, *asked)[0]["foretold"][:, :, 0]
    fold = label_folds(y, clients.owner)
    for k in range(4):
        own, one = clients.owner == k, each[parts[k]]
        one = one if moved else one._replace(shift=None)
        known = own & (y >= 0)
        lots = [(known & (fold != f), known & (fold == f)) for f in range(FOLDS)]
        for way, some in enumerate((lots, [(known & False, known)])):
            wanted = np.zeros(len(TEMPERATURES))
            for learnt, asked_of in some:
                counts, means = np.zeros((1, 3)), np.zeros((1, 3, D))
                scatter = np.zeros((1, 3, D, D))
                for r in range(3):
                    rows = X[learnt & (y == r)]
                    counts[0, r] = len(rows)
                    if len(rows):
                        means[0, r] = rows.mean(axis=0)
                        scatter[0, r] = (rows - means[0, r]).T @ (rows - means[0, r])
                told = counts, means, packed(scatter, kind)
                post = borrowed.posterior(*told, one, kind, False)
                covariances, freedom = borrowed.predictive(post, one, kind)
                for i in np.flatnonzero(asked_of):
                    away = X[i] - post.means[0]
                    squares = [a @ np.linalg.solve(c, a) for a, c in zip(away, covariances[0])]
                    joint = (
                        np.log(post.weights[0])
                        - 0.5 * np.linalg.slogdet(2 * np.pi * covariances[0])[1]
                        + shaped.students(np.array(squares), freedom[0], D)
                    )
                    wanted += [log_softmax(joint / t)[int(y[i])] for t in TEMPERATURES]
            np.testing.assert_allclose(found[k, way], wanted, rtol=1e-8, atol=1e-10)
    assert (found[2] == 0).all()


# --- what the server makes of it -----------------------------------------------------------------


def test_the_likeliest_temperature_lies_between_those_that_were_tried():
    logs = np.log(TEMPERATURES)
    curve = -1e6 * np.square(logs - np.log(3.3))
    assert likeliest_temperature(curve) == pytest.approx(3.3, rel=1e-4)
    assert likeliest_temperature(np.zeros(len(logs))) == 1.0
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
    for much in (1e9, 10.0):
        told = together(np.vstack([each, lie]), np.append(labels, much))
        assert likeliest_temperature(told) < 1.6 * honest
    assert likeliest_temperature(np.vstack([each, lie]).sum(axis=0)) == TEMPERATURES[-1]


def test_no_label_surprises_by_more_than_three_nats():
    """Where many sites have labels that nothing foretells, temperatures are not theirs alone."""
    each = -100.0 * np.arange(3.0) * np.ones((7, 1))
    told = together(each, np.full(7, 10.0))
    assert told.tolist() == [0.0, -7 * 10 * 3.0, -7 * 10 * 3.0]


# --- fits ----------------------------------------------------------------------------------------


def test_probabilities_that_are_right_stay_as_they_are():
    model = fitted(people(n=60))
    assert model.temperature_ < 1.25 and model.new_site_temperature_ < 1.25


def test_sites_that_differ_have_a_temperature_of_their_own_and_new_ones_another():
    X, y, site = people(m=6, n=80)
    shift = np.random.default_rng(5).normal(size=(6, N_CLASSES, D))
    rows = X + 3.0 * shift[site, y], y, site
    model = fitted(rows, 0.5)
    assert model.temperature_ < 1.5 < model.new_site_temperature_
    for groups, temperature in ((site, model.temperature_), (site + 10, None)):
        new = temperature is None
        found = model.predict_proba(rows[0], groups=groups)
        model.temperature_, model.new_site_temperature_ = (
            (9.0, model.new_site_temperature_) if new else (model.temperature_, 9.0)
        )
        again = model.predict_proba(rows[0], groups=groups)
        np.testing.assert_allclose(found, again)


@pytest.mark.parametrize("share", [0.3, 0.1])
def test_classes_of_few_labels_are_told_less_surely_and_no_otherwise(share):
    # With all labels wide covariances are unsure enough of classes with long tails.
    model = by_all_rows(fitted(people(tails=2.5), share))
    new = people(tails=2.5, n=200)
    groups, cooled = model.predict(new[0], groups=new[2]), loss(model, *new)
    assert model.temperature_ > 1.3
    # From sites of the fit, whose places `people` draws before any row.
    model.temperature_ = model.new_site_temperature_ = 1.0
    assert (model.predict(new[0], groups=new[2]) == groups).all()
    assert cooled < loss(model, *new)


def test_densities_do_not_know_of_temperatures():
    rows = people(tails=2.5)
    model = fitted(rows, 0.1)
    assert model.temperature_ > 1.0
    before = model.score_samples(rows[0], groups=rows[2])
    model.temperature_ = model.new_site_temperature_ = 1.0
    assert (model.score_samples(rows[0], groups=rows[2]) == before).all()


def test_labels_of_one_site_say_nothing_of_others():
    X, y, site = people(m=4)
    model = FedGrEM(N_CLASSES, covariance_type="full", random_state=0)
    assert model.fit(X, np.where(site == 0, y, -1), groups=site).temperature_ == 1.0
    assert model.new_site_temperature_ == 1.0
    assert model.fit(X[site == 0], y[site == 0], groups=site[site == 0]).temperature_ == 1.0


def test_a_fit_without_labels_has_no_temperature():
    X, _, site = people(m=4)
    model = fitted(people(m=4))
    assert hasattr(model, "temperature_")
    model.fit(X, groups=site)
    assert not hasattr(model, "temperature_")
    np.testing.assert_allclose(model.predict_proba(X, groups=site).sum(axis=1), 1.0)


def test_sites_with_rules_tell_of_labels_only_if_they_have_many():
    rows = people(tails=2.5, n=300)
    rules = {"engine": InProcess(disclosure="enforce", progress=False)}
    free, ruled = fitted(rows, 0.3), fitted(rows, 0.3, **rules)
    assert free.temperature_ > 1.3
    assert ruled.temperature_ == pytest.approx(free.temperature_, rel=0.1)
    assert fitted(rows, 0.01, **rules).temperature_ == 1.0


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
    assert lacking and all(one[3].tolist() == [False, False, True] for one in lacking)
    for made, first, other, _ in lacking:
        assert (made.centers[2] == other.centers[2]).all()
        assert (made.centers[:2] == first.centers[:2]).all()


def test_sites_of_a_part_have_no_say_in_the_fit_without_it(monkeypatch):
    seen = []
    whole = sureness.in_common_of
    monkeypatch.setattr(
        sureness, "in_common_of", lambda ways, part: seen.append(ways) or whole(ways, part)
    )
    rows = people()
    fitted(rows, 0.5)
    first, second = seen
    assert (len(first), len(second)) == (3, 2)
    for without in first:
        heard = np.array([one.last.heard for one in without])
        assert heard.shape == (5, M) and (heard.sum(axis=0) == 4).all()


def test_a_site_hears_of_what_is_common_without_its_own_part_and_of_no_other():
    rng, parts = np.random.default_rng(4), np.array([1, 0, 1])
    model = fitted(people(m=3))
    common = model._result.common
    fits = []
    for _ in range(2):
        one = Departure(
            common._replace(centers=rng.normal(size=(3, D)), shift=None), "full", False, 3
        )
        fits.append(one)
    told = sureness.in_common_of([fits, fits[::-1]], parts)
    assert all(array.shape[0] == 3 for array in told.values())
    for w, way in enumerate((fits, fits[::-1])):
        wanted = np.stack([way[k].common.centers for k in parts])
        assert (told["centers"][:, w] == wanted).all()


# --- classes of a site, by its labelled rows alone ------------------------------------------------


def test_a_site_s_classes_are_what_labelled_rows_add_to_what_is_common():
    X, y, site = people(tails=2.5)
    model, some = fitted((X, y, site), 0.3), known(len(y), 0.3)
    result = model._result
    counts, means, scatter = np.zeros((M, 3)), np.zeros((M, 3, D)), np.zeros((M, 3, D, D))
    for k, r in np.ndindex(M, N_CLASSES):
        own = X[some & (site == k) & (y == r)]
        counts[k, r] = len(own)
        if len(own):
            means[k, r] = own.mean(axis=0)
            scatter[k, r] = (own - means[k, r]).T @ (own - means[k, r])
    told = borrowed.posterior(counts, means, packed(scatter, "full"), result.common, "full", False)
    wanted = told.weights, told.means, *borrowed.predictive(told, result.common, "full")
    for name, one in zip(result.of_classes, wanted):
        np.testing.assert_allclose(result[name], one, rtol=1e-6, atol=1e-9)
    # Probabilities are of these, densities of the groups that all rows make.
    by_all_rows(model)
    data = gaussian.prepare(Federation.from_groups(X, site))
    for names, found in (
        (result.of_classes, model.predict_proba(X, groups=site)),
        (result.of_groups, model.score_samples(X, groups=site)),
    ):
        weights, means, covariances, freedom = (result[name] for name in names)
        groups = shaped.Groups(weights[:, None], means[:, None], covariances[:, None])
        joint = shaped.log_joint(data, groups, freedom)
        if found.ndim == 1:
            np.testing.assert_allclose(found, logsumexp(joint, axis=1))
        else:
            np.testing.assert_allclose(found, softmax(joint / model.temperature_, axis=1))


@pytest.mark.parametrize("share", [0.3, 0.1])
def test_labelled_rows_of_a_site_know_its_classes_better_than_rows_that_settled(share):
    rows, new = people(tails=2.5), people(tails=2.5, n=200)
    model = fitted(rows, share)
    with_classes = loss(model, *new)
    bare = dict.fromkeys(model._result.of_classes)
    model._result = replace(model._result, **bare)
    assert with_classes < loss(model, *new)


def test_where_all_labels_are_known_or_a_class_has_none_classes_are_groups():
    X, y, site = people()
    assert fitted((X, y, site))._result.class_means is None
    model = FedGrEM(4, covariance_type="full", random_state=0)
    model.fit(X, np.where(known(len(y), 0.5), y, -1), groups=site)
    assert model._result.class_means is None


@pytest.mark.parametrize("options", [{}, {"covariance_type": "tied"}, {"share_weights": False}])
def test_a_site_without_labels_has_the_common_classes(options):
    X, y, site = people()
    labels = np.where((site < 4) | ~known(len(y), 0.5), -1, y)
    options = {"covariance_type": "full", **options}
    model = FedGrEM(N_CLASSES, random_state=0, **options).fit(X, labels, groups=site)
    result = model._result
    assert (np.abs(result.class_means[:4] - model.centers_) < 1e-9).all()
    assert np.isfinite(model.predict_proba(X, groups=site)).all()
    assert np.mean(model.predict(X, groups=site)[site < 4] == y[site < 4]) > 0.6


def test_a_new_site_s_labelled_rows_tell_of_its_classes():
    X, y, site = people(tails=2.5, m=13)
    old, new, some = site < 12, site == 12, known(len(y), 0.3)
    model = fitted((X[old], y[old], site[old]), 0.3)
    asked = X[new], y[new], site[new]
    common = model.predict_proba(asked[0], groups=asked[2])
    model.adapt(X[new], np.where(some, y, -1)[new], groups=site[new])
    mixed = model.predict_proba(asked[0], groups=asked[2])
    model._adapted.clear()
    model.adapt(X[new & some], y[new & some], groups=site[new & some])
    np.testing.assert_allclose(model.predict_proba(asked[0], groups=asked[2]), mixed)
    assert np.abs(mixed - common).max() > 0.01
    # Rows without labels change a new site's groups, and not its classes; labels make it known.
    assert model.temperature_ != model.new_site_temperature_
    density = model.score_samples(asked[0], groups=asked[2])
    model._adapted.clear()
    model.adapt(X[new], groups=site[new])
    np.testing.assert_allclose(model.predict_proba(asked[0], groups=asked[2]), common, atol=1e-4)
    assert np.abs(model.score_samples(asked[0], groups=asked[2]) - density).max() > 0.01


def test_classes_of_sites_are_kept(tmp_path):
    X, y, site = people(m=4)
    model = fitted((X, y, site), 0.5)
    model.adapt(X[:30] + 0.2, np.where(known(30, 0.5), y[:30], -1), groups="new")
    model.save(tmp_path / "model", sites=True)
    again = load(tmp_path / "model")
    for groups in (site, np.full(len(site), "new"), np.full(len(site), "nobody")):
        np.testing.assert_array_equal(
            again.predict_proba(X, groups=groups), model.predict_proba(X, groups=groups)
        )


def test_models_that_were_kept_before_there_were_temperatures_predict_as_they_did():
    X, y, site = people(m=4)
    model = fitted((X, y, site), 0.5)
    lacking = (*model._result.of_classes, "class_counts", "temperatures")
    run = replace(model._run, result=replace(model._result, **dict.fromkeys(lacking)))
    del model.temperature_, model.new_site_temperature_
    model._read(run)
    assert not hasattr(model, "temperature_")
    model.adapt(X[:30] + 2.0, y[:30], groups="new")
    data = gaussian.prepare(Federation.from_groups(X, np.full(len(X), "new")))
    weights, means, covariances, freedom = (part[None] for part in model._adapted["new"])
    groups = shaped.Groups(weights[:, None], means[:, None], covariances[:, None])
    joint = shaped.log_joint(data, groups, freedom)
    found = model.predict_proba(X, groups=np.full(len(X), "new"))
    np.testing.assert_allclose(found, softmax(joint, axis=1))


# --- what a question may ask ---------------------------------------------------------------------


def test_questions_that_are_too_sharp_are_told_by_how_far_rows_are_from_their_groups():
    X, y, site = people(m=2, n=90)
    clients = Federation.from_groups(X, site, y=y.astype(float))
    settings = FEDGREM.settings(n_components=3, covariance_type="full", labels=True)
    data, centers = gaussian.prepare(clients, True), np.stack([X[y == r].mean(0) for r in range(3)])

    def times(spread, between):
        matrices = np.tile(np.eye(D), (2, 3, 1, 1))
        without = {
            **{"centers": np.stack([centers] * 2), "between": between * matrices},
            **{"covariances": spread * matrices, "degrees": np.full((2, 3), 1e5)},
            **{"concentration": np.ones((2, 3)), "n_estimates": np.full(2, 6.0)},
            **{"known": np.full((2, 3), 1e9), "shift": np.zeros((2, D, D)), "alike": np.zeros(2)},
        }
        without = {name: array[:, None] for name, array in without.items()}
        without |= {"part": np.zeros(2), "own_weights": np.zeros(2)}
        reply, _ = surprise(clients, data, settings, {}, without, None, None)
        return reply.behind()[MISFIT].max(axis=0)

    assert (times(1.0, 0.1) < 1.5).all()
    assert (times(1e-4, 1e-4) > 10).all()
    # Wide where nothing is known of a site, and sharp where its own labels have bent them.
    bent, unbent = times(1e-4, 10.0)
    assert bent > 10 and unbent < 1.5
