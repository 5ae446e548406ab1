"""Ordering components alike: brute force as oracle, the paper's assumption, invariances, doubt."""

from itertools import combinations, permutations, product

import numpy as np
import pytest

from fedkin.alignment import _cheapest_cycle, align
from reproduction.alignment_draws import (
    ODD_KINDS,
    assumption_draw,
    least_distance,
    odd_sites,
    relabel,
    same_meaning,
    shuffled,
)


def score(aligned):
    """Sum of distances between equal components of all pairs of sites."""
    pairs = combinations(aligned, 2)
    return sum(np.linalg.norm(one - other, axis=1).sum() for one, other in pairs)


def separated(rng, n_sites=12, n_components=4, n_features=3, noise=0.3):
    """Centres on a line, 4 apart, plus noise."""
    centers = 4.0 * np.arange(n_components)[:, None] * np.eye(1, n_features)
    return centers + noise * rng.normal(size=(n_sites, n_components, n_features))


def summed_distance(components, labelling):
    """The paper's score over unordered pairs, loop by loop."""
    total = 0.0
    for left in range(len(components)):
        for right in range(left):
            for mine, theirs in zip(labelling[left], labelling[right], strict=True):
                total += np.linalg.norm(components[left][mine] - components[right][theirs])
    return total


# --- Assumption C.1 ------------------------------------------------------------------------------


@pytest.mark.parametrize("n_components", range(2, 9))
def test_all_of_200_draws_of_the_papers_assumption_are_right(n_components):
    rng = np.random.default_rng(n_components)
    wrong = []
    for draw in range(200):
        kind = ODD_KINDS[draw % len(ODD_KINDS)]
        estimates, n_odd = assumption_draw(rng, n_components, kind)
        mixed, labels = shuffled(estimates, rng)
        if not same_meaning(align(mixed), labels, slice(n_odd, None)):
            wrong.append((draw, kind))
    assert wrong == []


@pytest.mark.parametrize("method", ["exhaustive", "stepwise", "assignment"])
@pytest.mark.parametrize("kind", ODD_KINDS)
def test_every_method_is_right_under_the_papers_assumption(method, kind):
    rng = np.random.default_rng(20)
    for _ in range(8):
        estimates, n_odd = assumption_draw(rng, 2 if method == "exhaustive" else 5, kind)
        if method == "exhaustive":
            estimates, n_odd = estimates[max(0, n_odd - 2) :][:12], min(n_odd, 2)
        mixed, labels = shuffled(estimates, rng)
        assert same_meaning(align(mixed, method), labels, slice(n_odd, None))


def test_typical_looking_odd_sites_do_not_mislead_the_start():
    """One start fails in 3 of these draws: the most typical site is an odd one."""
    wrong = []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        centers = rng.normal(size=(15, 2))
        centers /= least_distance(centers[None])
        components = centers + 0.1 / np.sqrt(2) * rng.normal(size=(40, 15, 2))
        components[:12] = odd_sites(rng, "crossed", centers, components[:12], 1.0)
        mixed, labels = shuffled(components, rng)
        if not same_meaning(align(mixed), labels, slice(12, None)):
            wrong.append(seed)
    assert wrong == []


def test_thirty_components_at_five_thousand_sites():
    rng = np.random.default_rng(21)
    centers = 4 * rng.normal(size=(30, 10))
    components = centers + 0.5 * rng.normal(size=(5000, 30, 10))
    components[:1500] = 5 * rng.normal(size=(1500, 30, 10))
    mixed, labels = shuffled(components, rng)
    result = align(mixed)
    assert same_meaning(result, labels, slice(1500, None))
    assert result.ambiguous[:1500].mean() > 0.99
    assert result.ambiguous[1500:].mean() < 0.01


# --- brute force ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("n_sites", "n_components"), [(2, 4), (3, 3), (4, 3), (6, 2)])
@pytest.mark.parametrize("seed", range(4))
def test_exhaustive_finds_the_least_score_of_all(n_sites, n_components, seed):
    components = np.random.default_rng(seed).normal(size=(n_sites, n_components, 2))
    own = tuple(range(n_components))
    least = min(
        summed_distance(components, (own, *others))
        for others in product(permutations(own), repeat=n_sites - 1)
    )
    result = align(components, "exhaustive")
    assert summed_distance(components, result.permutations) == pytest.approx(least, rel=1e-12)


def test_score_is_the_summed_distance():
    rng = np.random.default_rng(22)
    mixed, _ = shuffled(rng.normal(size=(5, 3, 2)), rng)
    labels = align(mixed).permutations
    expected = summed_distance(mixed, labels)
    assert score(relabel(mixed, labels)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("n_components", [1, 2, 3, 5])
def test_given_a_reference_each_site_gets_its_cheapest_labels(n_components):
    rng = np.random.default_rng(23)
    components = rng.normal(size=(15, n_components, 2))
    reference = rng.normal(size=(n_components, 2))
    result = align(components, reference=reference)
    np.testing.assert_allclose(result.reference, reference, atol=1e-14)
    aligned = relabel(components, result.permutations)
    for site, found in zip(components, aligned, strict=True):
        least = min(
            np.linalg.norm(site[list(order)] - reference, axis=1).sum()
            for order in permutations(range(n_components))
        )
        assert np.linalg.norm(found - reference, axis=1).sum() == pytest.approx(least, rel=1e-10)


@pytest.mark.parametrize("n_components", [2, 3, 5])
def test_the_cheapest_cycle_is_the_gap_to_the_second_best_labelling(n_components):
    rng = np.random.default_rng(24)
    tables = rng.uniform(size=(20, n_components, n_components))
    tables -= 1.5 * np.eye(n_components)  # the identity is best
    slots = list(range(n_components))
    steps = tables - np.diagonal(tables, axis1=1, axis2=2)[:, None, :]
    steps[:, slots, slots] = np.inf
    for table, gap in zip(tables, _cheapest_cycle(steps), strict=True):
        costs = sorted(table[slots, list(order)].sum() for order in permutations(slots))
        assert gap == pytest.approx(costs[1] - costs[0], rel=1e-10)


# --- invariances ---------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["auto", "exhaustive", "stepwise", "assignment"])
def test_relabelling_a_site_changes_nothing(method):
    rng = np.random.default_rng(25)
    components = separated(rng, n_sites=5, n_components=3, noise=1.0)
    first, second = (shuffled(components, rng)[0] for _ in range(2))
    one, two = align(first, method), align(second, method)
    np.testing.assert_array_equal(
        relabel(first, one.permutations), relabel(second, two.permutations)
    )
    np.testing.assert_array_equal(one.ambiguous, two.ambiguous)


@pytest.mark.parametrize("method", ["exhaustive", "assignment"])
def test_order_of_sites_is_irrelevant(method):
    rng = np.random.default_rng(26)
    components, _ = shuffled(separated(rng, n_sites=6, n_components=3, noise=1.5), rng)
    order = rng.permutation(6)
    result, reordered = align(components, method), align(components[order], method)
    np.testing.assert_array_equal(reordered.permutations, result.permutations[order])
    np.testing.assert_array_equal(reordered.ambiguous, result.ambiguous[order])


@pytest.mark.parametrize("method", ["exhaustive", "stepwise", "assignment"])
def test_shifting_everything_shifts_the_reference_only(method):
    rng = np.random.default_rng(27)
    components, _ = shuffled(separated(rng, n_sites=6, n_components=3, noise=1.0), rng)
    result, moved = align(components, method), align(components + 1e6, method)
    np.testing.assert_array_equal(moved.permutations, result.permutations)
    np.testing.assert_array_equal(moved.ambiguous, result.ambiguous)
    np.testing.assert_allclose(moved.reference, result.reference + 1e6, rtol=1e-14)


def test_aligned_components_come_in_the_order_of_the_reference():
    rng = np.random.default_rng(28)
    mixed, _ = shuffled(separated(rng), rng)
    result = align(mixed)
    assert (np.diff(result.reference[:, 0]) > 0).all()
    expected = np.median(relabel(mixed, result.permutations), axis=0)
    np.testing.assert_allclose(result.reference, expected, atol=1e-12)


def test_a_site_that_joins_later_is_aligned_to_the_others():
    rng = np.random.default_rng(29)
    mixed, labels = shuffled(separated(rng), rng)
    early = align(mixed[:-1])
    late = align(mixed[-1:], reference=early.reference)
    together = np.vstack([early.permutations, late.permutations])
    meaning = np.take_along_axis(labels, together, axis=1)
    assert (meaning == meaning[0]).all()


# --- doubt, and what is not a number -------------------------------------------------------------


def test_clear_labels_are_not_called_ambiguous():
    result = align(separated(np.random.default_rng(30), n_sites=200))
    assert not result.ambiguous.any()


def test_only_the_site_with_two_components_in_one_place_is_ambiguous():
    components = separated(np.random.default_rng(31))
    components[4, 1] = components[4, 2] = (components[4, 1] + components[4, 2]) / 2
    assert np.flatnonzero(align(components).ambiguous).tolist() == [4]


@pytest.mark.parametrize("seed", range(20))
def test_equal_components_are_ambiguous_even_where_nothing_varies(seed):
    site = np.random.default_rng(seed).normal(size=(5, 8))
    site[3] = np.nextafter(site[1], np.inf)
    assert align(np.tile(site, (6, 1, 1))).ambiguous.all()
    assert align(site[None]).ambiguous.all()


def test_a_site_far_from_everything_is_ambiguous():
    rng = np.random.default_rng(32)
    components = separated(rng)
    components[0] += 1e6 * rng.normal(size=components[0].shape)
    assert np.flatnonzero(align(components).ambiguous).tolist() == [0]


def test_overlapping_components_are_labelled_as_well_as_can_be_and_doubt_is_honest():
    """One site in eight must be wrong; where no doubt is reported it is less than one in 20."""
    rng = np.random.default_rng(33)
    mixed, labels = shuffled(separated(rng, n_sites=2000, n_components=3, noise=1.8), rng)
    result = align(mixed)
    known_centers = align(mixed, reference=4.0 * np.arange(3)[:, None] * np.eye(1, 3))
    wrong, unavoidable = (
        (np.take_along_axis(labels, each.permutations, axis=1) != np.arange(3)).any(axis=1)
        for each in (result, known_centers)
    )
    assert 0.1 < wrong.mean() <= 1.05 * unavoidable.mean()
    assert wrong[~result.ambiguous].mean() < 1 / 20
    assert result.ambiguous[wrong].mean() > 0.85
    assert result.ambiguous.mean() < 0.65


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("method", ["auto", "exhaustive", "stepwise", "assignment"])
def test_sites_that_are_not_finite_keep_their_order_and_harm_nobody(bad, method):
    rng = np.random.default_rng(34)
    mixed, _ = shuffled(separated(rng, n_sites=6, n_components=3), rng)
    spoilt = mixed.copy()
    spoilt[[0, 3], 1, 2] = bad
    result, clean = align(spoilt, method), align(mixed[[1, 2, 4, 5]], method)
    np.testing.assert_array_equal(result.permutations[[0, 3]], [[0, 1, 2]] * 2)
    np.testing.assert_array_equal(result.permutations[[1, 2, 4, 5]], clean.permutations)
    assert result.ambiguous.tolist() == [True, False, False, True, False, False]


def test_nothing_finite_and_no_site_at_all():
    result = align(np.full((3, 2, 2), np.nan))
    np.testing.assert_array_equal(result.permutations, [[0, 1]] * 3)
    assert result.ambiguous.all()
    assert align(np.empty((0, 2, 2))).permutations.shape == (0, 2)


@pytest.mark.parametrize("method", ["auto", "exhaustive", "stepwise", "assignment"])
@pytest.mark.parametrize("n_sites", [1, 2, 100])
def test_one_component_and_one_site_are_trivial(method, n_sites):
    components = np.random.default_rng(35).normal(size=(n_sites, 1, 3))
    result = align(components, method)
    assert (result.permutations == 0).all()
    assert not result.ambiguous.any()
    alone = align(np.array([[[3.0], [1.0], [2.0]]]), method)
    assert alone.permutations.tolist() == [[1, 2, 0]]


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="shape"):
        align(np.zeros((3, 2)))
    with pytest.raises(ValueError, match="assignment"):
        align(np.zeros((40, 5, 2)), "exhaustive")
    with pytest.raises(ValueError, match="method"):
        align(np.zeros((3, 2, 2)), "fastest")
    with pytest.raises(ValueError, match="reference"):
        align(np.zeros((3, 2, 2)), reference=np.zeros((3, 2)))
