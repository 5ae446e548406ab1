"""Attacks on sums over parts of a site's rows: they work with rules lifted, and fail by default."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from fedkin import FGPR, FedEM, FedGMM, FedGrEM, InProcess
from fedkin.algorithms import algorithm as find_algorithm
from fedkin.datasets import make_gaussian_sites
from fedkin.engines import Journal
from fedkin.engines.site import SiteHalf
from fedkin.federation import Federation
from fedkin.models.common_sums import wholes
from fedkin.models.least_squares import packed_statistics, unpack
from fedkin.privacy.disclosure import DEFAULT_RULES, DisclosureRules, Guard, examine
from fedkin.privacy.disclosure.look import Table
from fedkin.privacy.policy import SitePolicy
from fedkin.protocol import MISFIT, Ask, Fault, QuorumLost, Reason
from fedkin.protocol.gate import WITHHELD
from tests.deployment.test_disclosure import half, honest_site

# What other rules do where a question's parameters are believed whatever they are.
BELIEVING = replace(DEFAULT_RULES, misfit=np.inf)


def nearest(found, rows):
    """How far a row that was read is from the nearest row that is there."""
    return float(np.abs(rows - found).max(axis=1).min())


# ------------------------------------------------------------------ folds


def four_positives(n=200):
    """A 0/1 column whose four patients are enough for the table, but not for every fold."""
    X, y = honest_site(11, n)
    X[:, 2] = 0.0
    X[[3, 50, 97, 160], 2] = 1.0
    return X, y


def fold_sums(X, y, folder, rules, run="run", **settings):
    site = half(X, y, folder, rules, run, "held_out", **settings)
    answer = site.answer(1, Ask("sums"), 0)
    return answer.fault, None if answer.fault is not None else answer.arrays["statistics"][0]


def read_alone_in_its_fold(statistics, column):
    """Patients whose level nobody else in their fold has."""
    found = []
    for fold in statistics:
        xx, xy, _, _ = unpack(fold)
        if round(xx[column, column]) == 1:
            found.append([*np.delete(xx[column], -1), xy[column]])
    return np.array(found)


def test_a_rare_level_that_falls_into_one_fold_gives_its_patient_away(tmp_path):
    X, y = four_positives()
    assert examine(X, y).smallest_cell == 4, "the table as a whole obeys the rules"
    _, lifted = fold_sums(X, y, tmp_path / "lifted", None)
    found = read_alone_in_its_fold(lifted, 2)
    assert len(found) >= 2
    for row in found:
        assert nearest(row, np.column_stack([X, y])) < 1e-12
    fault, _ = fold_sums(X, y, tmp_path / "kept", DEFAULT_RULES)
    assert fault == Fault(Reason.CELL, "statistics")
    site = half(X, y, tmp_path / "kept", DEFAULT_RULES, "scores", "held_out")
    models = {"coef": np.zeros((1, 5, 1, 4)), "quadratic": np.tile(np.eye(4), (1, 5, 1, 1, 1))}
    pooled = {"pooled": np.tile(lifted.sum(axis=0), (5, 1)), "spread": np.ones(5)}
    assert site.answer(1, Ask("scores", pooled, models), 0).fault == Fault(Reason.CELL, "totals")


def test_folds_of_enough_rows_do_leave(tmp_path):
    X, y = honest_site(12, 200)
    fault, sums = fold_sums(X, y, tmp_path, DEFAULT_RULES)
    assert fault is None and sums.shape[0] == 5
    fault, _ = fold_sums(X[:60], y[:60], tmp_path / "few", DEFAULT_RULES, folds=10)
    assert fault == Fault(Reason.FEW_ROWS, "statistics")


def test_many_ways_to_cut_the_same_rows_are_solved_for_every_row(tmp_path):
    from fedkin.models.folds import row_folds

    n = 60
    X, y = honest_site(13, n)
    client = Federation.from_clients({"a": (X, y)})
    members, sums = [], []
    for seed in range(20):
        run, told = f"run-{seed}", {"folds": 4, "fold_seed": seed}
        _, sent = fold_sums(X, y, tmp_path / "lifted", None, run, **told)
        # Who knows a site's name and size knows its folds.
        members.append(np.arange(4)[:, None] == row_folds(client, 4, seed))
        sums.append([np.delete(unpack(fold)[0][-1], -1) for fold in sent])
    found = np.linalg.lstsq(np.concatenate(members).astype(float), np.concatenate(sums))[0]
    np.testing.assert_allclose(found, X, atol=1e-9)
    kept = tmp_path / "kept"
    faults = [
        fold_sums(X, y, kept, DEFAULT_RULES, f"run-{seed}", folds=4, fold_seed=seed)[0]
        for seed in (0, 1, 0)
    ]
    assert faults == [None, Fault(Reason.CUT), None], "the same cut once more tells nothing"


# ------------------------------------------------------------------ groups


def two_groups(n=120, d=2):
    rng = np.random.default_rng(21)
    X = rng.normal(size=(n, d)) + 3.0 * (np.arange(n) % 2)[:, None]
    return X, X @ np.arange(1.0, d + 1) + rng.normal(size=n)


def cut_at(place, direction):
    """Two equal narrow clouds on both sides of a plane: rows beyond it fall to the second."""
    d = len(direction)
    return {
        "centers": np.stack([(place - 1.0) * direction, (place + 1.0) * direction]),
        "covariances": np.tile(1e-3 * np.eye(d), (2, 1, 1)),
        "components": np.zeros((1, d)),
        "noise": np.array(1.0),
    }


def outermost(site, direction):
    """A curious server halves the way until one row alone is beyond the plane, and reads it."""
    low, high, read = -20.0, 20.0, []
    for number in range(1, 42):
        place = (low + high) / 2
        answer = site.answer(number, Ask("expect", cut_at(place, direction)), 0)
        if answer.fault is not None:
            assert answer.fault.reason is Reason.MISFIT
            return np.full((1, len(direction)), np.inf)
        sums = answer.arrays["moments"][0, 1]
        read.append(sums[1 : 1 + len(direction)] / max(sums[0], 1e-300))
        low, high = (low, place) if sums[0] < 0.999 else (place, high)
        if 0.999 < sums[0] < 1.001:
            break
    return np.array(read)


@pytest.mark.parametrize("turn", range(4))
def test_centres_chosen_on_purpose_read_a_patient(turn, tmp_path):
    X, y = two_groups()
    direction = np.array([np.cos(turn), np.sin(turn)])
    read = {}
    for rules in (None, BELIEVING, DEFAULT_RULES):
        folder = tmp_path / str(len(read))
        site = half(X, y, folder, rules, algorithm="fedgmm", n_components=1)
        read[rules] = outermost(site, direction)
    patient = X[np.argmax(X @ direction)]
    assert nearest(patient, read[None]) < 1e-3
    assert nearest(patient, read[BELIEVING]) > 0.5
    assert np.isinf(read[DEFAULT_RULES]).all(), "nothing leaves"


def beyond(site, first, places):
    """Sums over the rows beyond every place, asked one after the other."""
    asked = [Ask("expect", cut_at(place, np.array([1.0, 0.0]))) for place in places]
    return [site.answer(first + k, ask, 0).arrays["moments"][0, 1] for k, ask in enumerate(asked)]


def around(X, *ranks):
    """Places on the first axis that so many rows are beyond."""
    ordered = np.sort(X[:, 0])
    return [(ordered[-k] + ordered[-k - 1]) / 2 for k in ranks]


def test_two_questions_that_differ_by_a_patient_read_it(tmp_path):
    """By default the second group leaves as the first did, also after a restart of the site."""
    X, y = two_groups()
    for rules in (replace(BELIEVING, differencing=False), BELIEVING):
        place = tmp_path / str(rules.differencing)
        chosen = {"algorithm": "fedgmm", "n_components": 1}
        (one,) = beyond(half(X, y, place, rules, **chosen), 1, around(X, 20))
        (other,) = beyond(half(X, y, place, rules, **chosen), 2, around(X, 21))
        if rules.differencing:
            np.testing.assert_array_equal(one, other)
            (again,) = beyond(half(X, y, place, rules, **chosen), 3, around(X, 21))
            np.testing.assert_array_equal(one, again, "asking twice does not help")
        else:
            assert nearest((other - one)[1:3] / (other - one)[0], X) < 1e-2
    far = beyond(half(X, y, tmp_path / "True", BELIEVING, **chosen), 4, around(X, 35))[0]
    assert far[0] == pytest.approx(35), "a group that differs by ten rows and more is answered"


def slices(places):
    """Three equal narrow clouds, and two cuts between them on the first axis."""
    low, high = places
    half_way = (high - low) / 2
    middle = low + half_way
    centers = np.zeros((3, 2))
    centers[:, 0] = middle - 2 * half_way, middle, middle + 2 * half_way
    return {
        "centers": centers,
        "covariances": np.tile(1e-4 * np.eye(2), (3, 1, 1)),
        "components": np.zeros((1, 2)),
        "noise": np.array(1.0),
    }


def by_three_slices(site, X, rank, asked, group):
    """The row beyond which so many are, from three questions; None if one is withheld.

    Slices from A to C, from C to B, and from A to just beyond B: every two differ by many rows.
    """
    a, c, b, just_beyond = around(X, rank + 40, rank + 20, rank + 1, rank)
    answers = [
        site.answer(1 + k, Ask("expect", asked(cuts)), 0)
        for k, cuts in enumerate(((a, c), (c, b), (a, just_beyond)))
    ]
    if any(answer.fault is not None for answer in answers):
        assert {one.fault.reason for one in answers if one.fault} == {Reason.MISFIT}
        return None
    first, second, third = (answer.arrays["moments"][0, group] for answer in answers)
    return third - second - first


def test_three_questions_read_a_patient_only_if_their_parameters_are_believed(tmp_path):
    X, y = two_groups()
    chosen = {"algorithm": "fedgmm", "n_components": 1}
    believing = half(X, y, tmp_path / "believing", BELIEVING, **chosen)
    read = by_three_slices(believing, X, 30, slices, 1)
    assert nearest(read[1:3] / read[0], X) < 1e-2
    site = half(X, y, tmp_path / "default", DEFAULT_RULES, **chosen)
    assert by_three_slices(site, X, 30, slices, 1) is None


def narrow_and_wide(share):
    """A cloud as narrow as a share of a slice, and one so wide that they meet at its ends."""

    def asked(places):
        middle, reach = np.mean(places), (places[1] - places[0]) / 2
        narrow = 2.0 * share * reach
        # log(wide) + reach^2 / (2 wide^2) = log(narrow) + reach^2 / (2 narrow^2)
        level = np.log(narrow) + reach**2 / (2 * narrow**2)
        wide = np.exp(level)
        for _ in range(100):
            wide = np.exp(level - reach**2 / (2 * wide**2))
        return {
            "centers": np.tile([middle, 1.5], (2, 1)),
            "covariances": np.stack([np.diag([one**2, 9.0]) for one in (narrow, wide)]),
            "components": np.zeros((1, 2)),
            "noise": np.array(1e3),
        }

    return asked


def test_the_sharpest_slices_that_are_answered_read_nobody(tmp_path):
    """Clouds as narrow as the rule lets them be: what is read is as far off as a guess."""
    X, y = two_groups()
    errors = {}
    for name, rules, shares in (
        ("lifted", None, [0.02]),
        ("default", DEFAULT_RULES, [0.07, 0.08, 0.09, 0.1, 0.11, 0.12]),
    ):
        errors[name] = []
        for rank, share in itertools.product(range(25, 45), shares):
            folder = tmp_path / f"{name}-{rank}-{share}"
            site = half(X, y, folder, rules, algorithm="fedgmm", n_components=1)
            read = by_three_slices(site, X, rank, narrow_and_wide(share), 0)
            if read is not None:
                patient = X[np.argsort(-X[:, 0])[rank]]
                errors[name].append(abs(read[2] / read[0] - patient[1]))
    column = X[np.argsort(-X[:, 0]), 1]
    guesses = [abs(np.mean(column[rank - 5 : rank + 6]) - column[rank]) for rank in range(25, 45)]
    assert np.median(errors["lifted"]) < 0.1
    assert len(errors["default"]) > 40, "some are answered"
    assert np.median(errors["default"]) > np.median(guesses), "a guess by neighbours is better"


@pytest.mark.parametrize("seed", [1, 3])
def test_an_honest_fit_reads_no_patient_from_two_replies(seed, tmp_path):
    """Groups far apart: from one round to the next a single row moves, and the journal has it."""
    rng = np.random.default_rng(seed)
    sites = {}
    for k in range(5):
        apart = np.where(np.arange(60) % 2, 3.0, -3.0)[:, None] * [1.0, 0.0]
        X = rng.normal(size=(60, 2)) + apart + 0.1 * rng.normal(size=2)
        sites[f"s{k}"] = (X, X.sum(axis=1) + rng.normal(size=60))
    data, found, fits = Federation.from_clients(sites), {}, {}
    for how in (None, "enforce"):
        journal = Journal(tmp_path / str(how))
        engine = InProcess(block_size=1, journal=journal.folder, disclosure=how)
        fits[how] = FedEM(2, average="pooled", random_state=0, engine=engine).fit(data)
        rounds = [journal.read(number).replies for number in journal.rounds()]
        found[how] = [
            nearest(moved[:2] / moved[2], sites[f"s{k}"][0])
            for one, other in itertools.combinations([r["sums"] for r in rounds if "sums" in r], 2)
            for k, r in itertools.product(range(5), range(2))
            if (moved := other[k, r] - one[k, r])[2] != 0
        ]
    assert min(found[None]) < 0.02 and not found["enforce"]
    np.testing.assert_allclose(fits["enforce"].means_, fits[None].means_, atol=0.02)


def test_what_a_small_group_leaves_of_the_others_is_withheld_too(tmp_path):
    X, y = two_groups()
    site = half(X, y, tmp_path, BELIEVING, algorithm="fedgmm", n_components=1)
    place = np.sort(X[:, 0])[-3]
    kept = site.answer(1, Ask("expect", cut_at(place, np.array([1.0, 0.0]))), 0).arrays
    assert not kept["moments"].any(), "the other sum is the whole without three patients"
    assert kept["sums"][0, 0, -1] == pytest.approx(len(X)), "sums over all rows leave"


def test_a_site_without_a_group_is_still_heard_of_the_others():
    """A group of few rows at a site counts as without any there; the fit goes on."""
    rng = np.random.default_rng(3)
    sites = {}
    for k in range(4):
        X = rng.normal(size=(80, 2)) + np.where(np.arange(80) < 40 + 38 * (k == 3), 0, 8)[:, None]
        sites[f"s{k}"] = (X, X @ [1.0, -1.0] + 0.1 * rng.normal(size=80))
    data = Federation.from_clients(sites)
    chosen = {"n_input_components": 2, "max_rounds": 20, "random_state": 0}
    free = FedGMM(1, **chosen, engine=InProcess(disclosure=None)).fit(data)
    strict = FedGMM(1, **chosen, engine=InProcess(disclosure="enforce")).fit(data)
    assert not strict.missing_sites_
    np.testing.assert_allclose(strict.centers_, free.centers_, atol=0.02)


def test_a_group_of_one_patient_keeps_the_component_it_was_sent(tmp_path):
    X, y = two_groups()
    X[7] = [10.0, 10.0]
    sent = np.array([[[1.5, 1.5], [9.0, 9.0]]])
    personal = {"components": sent, "order": np.array([[0, 1]]), "weights": np.full((1, 2), 0.5)}
    common = {"covariance": np.empty((0, 0)), "noise": np.empty(0)}
    asked = Ask("improve", common, personal, ("variances",))
    told = []
    for rules in (None, DEFAULT_RULES):
        site = half(X, y, tmp_path / str(rules is None), rules, algorithm="fedgrem", n_components=2)
        told.append(site.answer(1, asked, 0))
    lifted, kept = (answer.arrays["components"][0] for answer in told)
    np.testing.assert_allclose(lifted[1], X[7], atol=1e-6)
    np.testing.assert_array_equal(kept, sent[0], "the other group is all rows but one")
    assert (told[1].arrays["variances"] >= 1e90).all()
    alone = half(X, y, tmp_path / "alone", DEFAULT_RULES, algorithm="fedgrem", n_components=2)
    assert alone.answer(1, Ask("start"), 0).fault.reason in WITHHELD


def test_a_batch_of_one_row_is_that_row(tmp_path):
    X, y = two_groups()
    personal = {
        "components": np.zeros((1, 1, 2)),
        "order": np.zeros((1, 1), dtype=np.int64),
        "weights": np.ones((1, 1)),
    }
    common = {"covariance": np.empty((0, 0)), "noise": np.empty(0)}
    read = []
    for rules in (None, DEFAULT_RULES):
        chosen = {"n_components": 1, "batch_size": 1}
        site = half(X, y, tmp_path / str(rules is None), rules, algorithm="fedgrem", **chosen)
        read.append(site.answer(1, Ask("improve", common, personal), 0).arrays["components"][0, 0])
    assert nearest(read[0], X) < 1e-12
    np.testing.assert_array_equal(read[1], 0.0)


def test_points_far_out_make_the_information_about_one_patient(tmp_path):
    X, _ = honest_site(4, 100)
    y = (np.arange(100) % 2).astype(float)
    steep = 2000.0 * np.eye(4)[:1]
    steep[0, -1] = -2000.0 * np.sort(X[:, 0])[50] + 1e-3
    question = {
        "points": steep,
        "basis": np.eye(4),
        "offset": np.zeros(4),
        "scale": np.array(1.0),
        "random": np.array([3]),
        "spread": np.eye(1),
        "places": np.zeros((1, 1), dtype=np.int64),
    }
    answers = {}
    for rules in (None, BELIEVING, DEFAULT_RULES):
        folder = tmp_path / str(len(answers))
        site = half(X, y, folder, rules, algorithm="mixed_model", family="binomial")
        answers[rules] = site.answer(1, Ask("plain", question), 0).fault
    assert answers[None] is None
    assert answers[BELIEVING] == Fault(Reason.FEW_ROWS, "information")
    assert answers[DEFAULT_RULES] == Fault(Reason.MISFIT)


def test_steep_classes_make_the_information_about_one_patient(tmp_path):
    X, _ = honest_site(4, 100)
    y = (np.arange(100) % 2).astype(float)
    half_way = np.sort(X[:, 0])[50]
    faults = {}
    for steepness in (1.0, 3000.0):
        question = {
            "coef": steepness * np.array([[[1.0, 0, 0, -half_way], [-1.0, 0, 0, half_way]]]),
            "logs": np.full((1, 2, 4), -30.0),
            "mean": np.zeros(3),
            "spread": np.ones(3),
        }
        folder = tmp_path / str(steepness)
        site = half(X, y, folder, BELIEVING, algorithm="softmax_mixed")
        faults[steepness] = site.answer(1, Ask("look", question), 0).fault
    assert faults == {1.0: None, 3000.0: Fault(Reason.FEW_ROWS, "information")}


# ------------------------------------------------------------------ the look itself


def test_rows_that_hardly_count_hide_nobody():
    X, y = honest_site(1, 60)
    weights = np.full(60, 1e-9)
    weights[5] = 1.0
    assert examine(X, y, weights).n_distinct < 1.001
    assert examine(X, y, np.full(60, 0.3)).n_distinct == 60
    assert Table(X, y).look(np.zeros(60)).n_rows == 0


def test_a_cell_of_a_group_is_counted_inside_the_group():
    X, y = honest_site(1, 60)
    X[:, 1] = np.arange(60) % 2
    weights = np.where(np.arange(60) % 2 == 0, 1.0, 1e-12)
    weights[1] = 1.0
    look = examine(X, y, weights)
    assert look.n_distinct > 30 and look.smallest_cell < 1.001
    far = np.where(np.arange(60) % 2 == 0, 1.0, 1e-200 * np.arange(60))
    assert examine(X, y, far).smallest_cell > 10, "sums of what nearly vanishes are sums, too"


def test_weights_of_rows_are_part_of_the_look(tmp_path):
    X, y = honest_site(1, 60)
    client = Federation.from_clients({"a": (X, y)})
    weights = np.full(60, 1e-9)
    weights[5] = 1.0
    schema = find_algorithm("fmlr").step("statistics").reply
    guard = Guard(DisclosureRules(), client.with_weights(weights))
    assert guard.reply(schema, {}) == Fault(Reason.FEW_ROWS, "statistics")


# ------------------------------------------------------------------ slopes at chosen points


def all_right_but_one(patient=17):
    """Classes that a plane tells exactly, but for one patient."""
    X, _ = honest_site(4, 100)
    half_way = float(np.mean(np.sort(X[:, 0])[49:51]))
    y = (X[:, 0] > half_way).astype(float)
    y[patient] = 1.0 - y[patient]
    return X, y, np.array([1.0, 0.0, 0.0, -half_way])


def steep_question(plane, steepness, spread=1.0):
    return {
        "points": steepness * plane[None],
        "basis": np.eye(4),
        "offset": np.zeros(4),
        "scale": np.array(1.0),
        "random": np.array([3]),
        "spread": np.eye(1) * spread,
        "places": np.zeros((1, 1), dtype=np.int64),
    }


@pytest.mark.parametrize("step", ["plain", "slopes"])
def test_a_slope_where_all_rows_but_one_are_fitted_is_that_row(step, tmp_path):
    X, y, plane = all_right_but_one()
    told = {}
    for rules in (None, BELIEVING, DEFAULT_RULES):
        folder = tmp_path / str(len(told))
        site = half(X, y, folder, rules, algorithm="mixed_model", family="binomial")
        question = steep_question(plane, 1e6)
        if step == "slopes":
            question["points"] = np.append(question["points"], [[1e-9]], axis=1)
        told[rules] = site.answer(1, Ask(step, question), 0)
    slope = told[None].arrays["slope"].reshape(-1)
    np.testing.assert_allclose(np.abs(slope[:3] / slope[3]), np.abs(X[17]), rtol=1e-6)
    assert told[BELIEVING].fault.reason is Reason.FEW_ROWS
    assert told[DEFAULT_RULES].fault.reason in WITHHELD


def between_two_planes(site, X, rank, steepness):
    """A row read from slopes at planes on both its sides; None if one is withheld."""
    ordered, told = np.sort(X[:, 0]), []
    for k, place in enumerate((rank, rank + 1)):
        plane = np.array([1.0, 0.0, 0.0, -(ordered[place] + ordered[place + 1]) / 2])
        question = steep_question(plane, steepness)
        question["points"] = np.append(question["points"], [[1e-9]], axis=1)
        answer = site.answer(1 + k, Ask("slopes", question), 0)
        if answer.fault is not None:
            assert answer.fault.reason is Reason.MISFIT
            return None
        told.append(answer.arrays["slope"].reshape(-1))
    moved = told[1] - told[0]
    return moved[1:3] / moved[3]


def test_steep_planes_on_both_sides_of_a_patient_read_it(tmp_path):
    """Planes as steep as the rule lets them be read nobody."""
    X, _ = honest_site(4, 100)
    y = (np.random.default_rng(0).random(100) < 0.5).astype(float)
    chosen = {"algorithm": "mixed_model", "family": "binomial"}
    errors = {rules: [] for rules in (BELIEVING, DEFAULT_RULES)}
    for rank, steepness in itertools.product(range(40, 60), (5.0, 10.0, 1e4)):
        for n, rules in enumerate(errors):
            folder = tmp_path / f"{rank}-{steepness}-{n}"
            read = between_two_planes(half(X, y, folder, rules, **chosen), X, rank, steepness)
            patient = X[np.argsort(X[:, 0])[rank + 1], 1:]
            if read is not None:
                errors[rules].append(float(np.abs(read - patient).max()))
    assert sum(error < 1e-6 for error in errors[BELIEVING]) > 15
    assert len(errors[DEFAULT_RULES]) >= 20, "some are answered"
    assert np.median(errors[DEFAULT_RULES]) > 0.8


def class_question(plane, steepness):
    return {
        "coef": steepness * np.stack([-plane, plane])[None],
        "logs": np.full((1, 2, 4), -30.0),
        "mean": np.zeros(3),
        "spread": np.ones(3),
    }


def test_a_pull_of_classes_where_all_rows_but_one_are_right_is_that_row(tmp_path):
    X, y, plane = all_right_but_one()
    told = {}
    for rules in (None, BELIEVING, DEFAULT_RULES):
        site = half(X, y, tmp_path / str(len(told)), rules, algorithm="softmax_mixed")
        told[rules] = site.answer(1, Ask("look", class_question(plane, 1e6)), 0)
    pull = told[None].arrays["pull"].reshape(2, 4)[0]
    np.testing.assert_allclose(pull[:3] / pull[3], X[17], rtol=1e-4)
    assert told[BELIEVING].fault == Fault(Reason.FEW_ROWS, "pull")
    assert told[DEFAULT_RULES].fault == Fault(Reason.MISFIT)
    judged = {"information": np.eye(8)[None], "together": np.array(0.0)}
    site = half(X, y, tmp_path / "judge", BELIEVING, algorithm="softmax_mixed")
    answer = site.answer(1, Ask("judge", {**class_question(plane, 1e6), **judged}), 0)
    assert answer.fault == Fault(Reason.FEW_ROWS, "departed")
    honest = half(X, y, tmp_path / "honest", DEFAULT_RULES, algorithm="softmax_mixed")
    assert honest.answer(1, Ask("look", class_question(plane, 1.0)), 0).fault is None


# ------------------------------------------------------------------ curves and clouds


def test_sums_at_points_chosen_on_purpose_are_only_for_a_server_that_is_trusted(tmp_path):
    """With lengths that are short beside the gaps between rows, sums at a point are of one row.

    A fine grid of points gives every target in one question.
    """
    rng = np.random.default_rng(31)
    x = np.sort(rng.uniform(0, 10, 40))[:, None]
    y = np.sin(x[:, 0]) + 0.1 * rng.normal(size=40)
    grid, short = np.linspace(0, 10, 400)[:, None], np.log(2e-3)
    tiny, length, pivot, growth, noise = -40.0, 0.0, 0.0, 0.0, 0.0
    theta = np.array([0.0, short, tiny, tiny, tiny, length, pivot, growth, noise])
    question = {
        "theta": theta[None],
        "kinds": np.array([[0.0, 0.0, 1.0]]),
        "places": grid,
        "frame": np.array([[0.0], [1.0]]),
        "units": np.array([0.0, 1.0]),
    }
    trusting = SitePolicy(trusted=("fgpr.slopes", "fgpr.totals"))
    for policy, read in ((trusting, True), (None, False)):
        known = find_algorithm("fgpr")
        client = Federation.from_clients({"a": (x, y)})
        given = (known, known.settings().for_sites(), client, 3, "run", tmp_path / str(read))
        site = SiteHalf(*given, disclosure=DEFAULT_RULES, policy=policy)
        answer = site.answer(1, Ask("totals", question), 0)
        if not read:
            assert answer.fault == Fault(Reason.TRUST)
            continue
        gram = wholes(answer.arrays["gram"][0, 0, 0], len(grid) + 3)
        weight, target = np.diagonal(gram)[: len(grid)], gram[: len(grid), -1]
        near = weight > 1e-3
        found = target[near] / np.sqrt(weight[near])
        away = np.abs(found[:, None] - y[None]).min(axis=1)
        assert near.sum() >= 5 and (away < 1e-6).sum() >= 5


@pytest.mark.filterwarnings("ignore")
def test_sites_that_keep_the_common_curve_back_still_share_a_prior():
    """Under the rules a fit goes on without it, and says so; who insists on it hears why not."""
    data = make_gaussian_sites(4, 60, random_state=2).federation
    with pytest.warns(UserWarning, match="4 sites are not behind a common curve"):
        enforced = FGPR(engine=InProcess(disclosure="enforce")).fit(data)
    plain = FGPR(common=False, hyperprior=True).fit(data)
    np.testing.assert_allclose(enforced.theta_, plain.theta_, rtol=1e-9)
    assert not enforced.common_.any() and not enforced.missing_sites_
    with pytest.raises(QuorumLost, match=r"allow\.trusted"):
        FGPR(common=True, engine=InProcess(disclosure="enforce")).fit(data)


def test_a_fit_whose_sites_kept_something_back_goes_on_from_its_journal(tmp_path):
    data = make_gaussian_sites(3, 40, random_state=2).federation
    engine = InProcess(disclosure="enforce", journal=tmp_path)
    with pytest.warns(UserWarning, match="common curve"):
        first = FGPR(engine=engine).fit(data)
        again = FGPR(engine=engine).fit(data)
    np.testing.assert_array_equal(again.theta_, first.theta_)


@pytest.mark.parametrize("step", ["shared_moments", "own_moments"])
def test_scatter_of_a_group_of_one_patient_does_not_leave(step, tmp_path):
    """Shapes of groups at means that single a patient out: with rules, groups without any row."""
    X, y = two_groups()
    means = np.array([[[1.5, 1.5], X[7]]])
    narrow = np.stack([9.0 * np.eye(2), 1e-8 * np.eye(2)])[None]
    shared = {"means": means, "covariances": narrow}
    personal = {"weights": np.full((1, 1, 2), 0.5)}
    if step == "own_moments":
        personal |= {name: array[None] for name, array in shared.items()}
        shared = {}
    told = {}
    for rules in (None, DEFAULT_RULES):
        folder = tmp_path / str(rules is None)
        site = half(
            X, y, folder, rules, algorithm="fedgrem", n_components=2, covariance_type="full"
        )
        told[rules] = site.answer(1, Ask(step, shared, personal), 0)
    lifted = told[None].arrays
    assert lifted["counts"][0, 0, 1] == pytest.approx(1.0, abs=1e-6)
    np.testing.assert_allclose(lifted["means"][0, 0, 1], X[7], atol=1e-6)
    kept = told[DEFAULT_RULES].arrays
    assert not kept["scatter"].any() and not kept["counts"].any(), "nor all rows but one"
    np.testing.assert_array_equal(kept["means"][0], means)


# ------------------------------------------------------------------ models that are scored


def variance_beyond(place, scale, n_folds=5, p=4):
    """Variance scale (x_0 - place) of a target: positive beyond the place only."""
    form = np.zeros((p, p))
    form[0, -1] = form[-1, 0] = 0.5 * scale
    form[-1, -1] = -scale * place
    return np.tile(form, (n_folds, 1, 1))


def scored_question(forms):
    """Models that nobody has fitted, to be scored: no slope, these variances (F, J, p, p)."""
    n_folds, n_models, p = forms.shape[:3]
    others = packed_statistics(Federation.from_clients({"b": honest_site(33, 200)}), True).T
    common = {"pooled": np.tile(others, (n_folds, 1)), "spread": np.ones(n_folds)}
    models = {"coef": np.zeros((1, n_folds, n_models, p)), "quadratic": forms[None]}
    return Ask("scores", common, models)


def read_beyond_a_plane(total, n_rows, places, scale):
    """The first column of the row that alone is beyond a plane, from its score of the wide form."""
    n_beyond = n_rows - np.floor(-total / 1e4 + 0.5)
    alone = np.flatnonzero(n_beyond == 1)
    if not len(alone):
        return None
    log = total[alone[0]] + 1e4 * (n_rows - 1)
    return places[alone[0]] + np.exp(-2.0 * log) / (2 * np.pi * scale)


def outermost_of_folds(answer, places, scale):
    """What the scores of one question give of every fold."""
    totals, rows = answer.arrays["totals"][0, :, 0, 1:-1], answer.arrays["rows"][0]
    found = [read_beyond_a_plane(t, n, places, scale) for t, n in zip(totals, rows)]
    return [value for value in found if value is not None]


def test_models_made_up_to_be_scored_read_the_outermost_patient_of_every_fold(
    tmp_path, monkeypatch
):
    X, y = honest_site(31, 100)
    places, scale = np.linspace(1.0, 3.0, 60), 1e12
    many = np.stack([variance_beyond(place, scale) for place in places], axis=1)
    with monkeypatch.context() as without_a_limit:
        without_a_limit.setattr("fedkin.algorithms.held_out.MOST_JOINED", 1000)
        lifted = half(X, y, tmp_path / "lifted", None, "run", "held_out")
        found = outermost_of_folds(lifted.answer(1, scored_question(many), 0), places, scale)
        assert len(found) >= 3
        for value in found:
            assert np.abs(X[:, 0] - value).min() < 1e-9
        strict = half(X, y, tmp_path / "rules", DEFAULT_RULES, "run", "held_out")
        fault = strict.answer(1, scored_question(many), 0).fault
        assert fault == Fault(Reason.FEW_ROWS, "totals")
    strict = half(X, y, tmp_path / "kept", DEFAULT_RULES, "run", "held_out")
    assert strict.answer(1, scored_question(many), 0).fault == Fault(Reason.ERROR)
    # A few planes at a time, one of which has a single row beyond it.
    for number in range(15):
        few = many[:, 4 * number : 4 * number + 4]
        run = half(X, y, tmp_path / "kept", DEFAULT_RULES, f"run-{number}", "held_out")
        answer = run.answer(1, scored_question(few), 0)
        assert answer.fault is not None or not outermost_of_folds(
            answer, places[4 * number : 4 * number + 4], scale
        )


def test_models_are_scored_once_in_a_run(tmp_path):
    X, y = honest_site(32, 100)
    flat = np.tile(np.diag([0.0, 0.0, 0.0, 1.0]), (5, 1, 1, 1))
    site = half(X, y, tmp_path, DEFAULT_RULES, "run", "held_out")
    first = site.answer(1, scored_question(flat), 0)
    assert first.fault is None
    again = site.answer(2, scored_question(flat), 1)
    np.testing.assert_array_equal(again.arrays["totals"], first.arrays["totals"])
    assert site.answer(3, scored_question(2.0 * flat), 2).fault == Fault(Reason.BUDGET)


# ------------------------------------------------------------------ rows that steps draw


def ifca_question():
    return {"models": np.zeros((1, 4)), "step": np.array(1.0)}


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_a_step_on_one_drawn_row_is_that_row(loss, tmp_path):
    X, y = honest_site(4, 100)
    y = (y > 0).astype(float) if loss == "logistic" else y
    chosen = {"algorithm": "ifca", "n_clusters": 1, "loss": loss, "batch_size": 1, "scale": False}
    chosen["local_steps"] = 1
    told = {}
    for rules in (None, DEFAULT_RULES):
        site = half(X, y, tmp_path / str(rules is None), rules, **chosen)
        told[rules] = site.answer(1, Ask("update", ifca_question()), 0)
    update = told[None].arrays["update"][0]
    assert nearest(update[:3] / update[3], X) < 1e-9
    assert told[DEFAULT_RULES].fault.reason is Reason.FEW_ROWS
    whole = {**chosen, "batch_size": None}
    site = half(X, y, tmp_path / "whole", DEFAULT_RULES, **whole)
    assert site.answer(1, Ask("update", ifca_question()), 0).fault is None


def test_steep_models_make_an_update_about_one_patient(tmp_path):
    X, y, plane = all_right_but_one()
    question = {"models": 1e6 * plane[None], "step": np.array(1.0)}
    chosen = {"algorithm": "ifca", "n_clusters": 1, "loss": "logistic", "scale": False}
    chosen |= {"fit_intercept": True, "averaging": "gradient", "alpha": 0.0}
    told = {}
    for rules in (None, BELIEVING, DEFAULT_RULES):
        site = half(X, y, tmp_path / str(len(told)), rules, **chosen)
        told[rules] = site.answer(1, Ask("update", question), 0)
    update = told[None].arrays["update"][0]
    # The least penalty that there is moves it a little.
    np.testing.assert_allclose(update[:3] / update[3], X[17], rtol=0.03)
    assert told[BELIEVING].fault.reason is Reason.FEW_ROWS
    assert told[DEFAULT_RULES].fault.reason is Reason.MISFIT


def test_a_model_of_one_step_is_the_row_that_was_drawn(tmp_path):
    X, y = honest_site(4, 100)
    chosen = {"algorithm": "odcl", "solver": "sgd", "alpha": 0.0}
    told = {}
    for n_steps, rules in ((1, None), (1, DEFAULT_RULES), (300, DEFAULT_RULES)):
        site = half(X, y, tmp_path / f"{n_steps}-{rules is None}", rules, n_steps=n_steps, **chosen)
        told[n_steps, rules] = site.answer(1, Ask("model"), 0)
    model = told[1, None].arrays["model"][0]
    assert nearest(model[:3] / model[3], X) < 1e-9
    assert told[1, DEFAULT_RULES].fault.reason is Reason.FEW_ROWS
    assert told[300, DEFAULT_RULES].fault is None


def test_the_value_of_a_batch_of_one_row_is_withheld(tmp_path):
    X, y = honest_site(4, 100)
    kernel = {"algorithm": "fgpr", "optimizer": "sgd", "common": False}
    faults = {}
    for size in (1, 32):
        site = half(X[:, :1], y, tmp_path / str(size), DEFAULT_RULES, batch_size=size, **kernel)
        n = len(site.cache.form.start)
        question = {
            "theta": site.cache.form.start,
            "rates": np.array([0.1]),
            "lower": np.full(n, -20.0),
            "upper": np.full(n, 20.0),
        }
        faults[size] = site.answer(1, Ask("local_steps", question), 0).fault
    assert faults[1].reason is Reason.FEW_ROWS and faults[32] is None


# ------------------------------------------------------------------ honest questions


def test_what_fits_ask_is_answered():
    """No rule about a question's parameters changes an honest fit."""
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(2, 3)) * 2
    groups = rng.integers(2, size=(8, 120))
    rows = rng.normal(size=(8, 120, 3)) + centers[groups]
    data = Federation.from_clients({f"s{k}": own for k, own in enumerate(rows)})
    fits = {}
    for rules in (BELIEVING, DEFAULT_RULES):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("fedkin.engines.inprocess.DEFAULT_RULES", rules)
            engine = InProcess(disclosure="enforce")
            kinds = ("identity", "tied", "full")
            fits[rules] = [
                FedGrEM(2, covariance_type=kind, random_state=0, engine=engine).fit(data)
                for kind in kinds
            ]
    for free, held in zip(*fits.values()):
        np.testing.assert_array_equal(free.means_, held.means_)


@pytest.mark.parametrize(
    ("times", "is_far"), [(1.0, False), (3.5, True), (np.inf, True), (np.nan, True)]
)
def test_what_nobody_can_measure_is_too_far(times, is_far):
    client = Federation.from_clients({"a": honest_site(1, 60)})
    schema = find_algorithm("fedgmm").step("expect").reply
    behind = {"sums": np.ones((60, 1)), MISFIT: np.full(60, times)}
    assert bool(Guard(DEFAULT_RULES, client)._far(schema, behind)) is is_far
    assert not Guard(DEFAULT_RULES, client)._far(schema, {"sums": np.ones((60, 1))})
