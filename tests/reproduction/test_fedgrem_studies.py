"""What survives of FedGrEM's tables and figures at toy size: orderings, no exact values."""

import numpy as np
import pytest

from fedkin import FedGrEM, LocalEM
from fedkin.datasets import make_gaussian_mixtures, make_regression_mixtures
from reproduction import catalogue
from reproduction import fedgrem_unguarded as printed_algorithm
from reproduction.fedgrem_printed import METHODS, printed
from reproduction.study import Results


def mean(found, measure, **where):
    return found.estimate(measure, **where).mean


PROMISING = (
    "fedgrem-figure-3-gmm",
    "fedgrem-figure-3-mor",
    "fedgrem-tables-1-6",
    "fedgrem-attacks",
    "fedgrem-other-draws",
    "fedgrem-alignment",
    "fedgrem-real-sites",
    "fedgrem-labels",
    "fedgrem-bent-sites",
    "fedgrem-labels-tables",
    "fedgrem-labels-few-rows",
    "fedgrem-labels-blended",
)


# What few draws cannot tell: how little huge values change the errors; log losses of one split of
# eight people, which differ by a few per cent (five splits of thirty are judged at full size);
# which of two ways is better at one table.
TOO_FEW = {
    "fedgrem-attacks": "change of errors",
    "fedgrem-labels": "log loss",
    "fedgrem-labels-blended": "the better way's",
}


@pytest.mark.parametrize("name", PROMISING)
def test_promises_hold_at_toy_size(kept_promises, name):
    assert kept_promises(name, but=TOO_FEW.get(name))


def test_with_like_sites_joining_beats_staying_alone_and_pooling(toy):
    found = toy("fedgrem-figure-3-gmm")
    error = {m: mean(found, "theta_mean", method=m, h=0.0) for m in found.distinct("method")}
    assert error["FedGrEM, adaptive"] < error["FedGrEM, exact"] < error["FedGrEM, two sweeps"]
    assert error["FedGrEM, two sweeps"] < error["Local-EM"]
    assert error["FedGrEM, adaptive"] < error["FedEM"]
    assert error["floor"] < 1.05 * error["FedGrEM, adaptive"]


def test_with_unlike_sites_common_components_lose_and_the_adaptive_rule_does_not(toy):
    found = toy("fedgrem-figure-3-gmm")
    error = {m: mean(found, "theta_mean", method=m, h=2.0) for m in found.distinct("method")}
    for method in ("FedEM", "FedGMM", "TGMM", "Pooled-EM", "FedGrEM, exact"):
        assert error[method] > error["Local-EM"]
    assert error["FedGrEM, adaptive"] <= 1.02 * error["Local-EM"]


def test_regressions_are_found_by_pulling_sites_together_not_alone_and_not_by_averages(toy):
    found = toy("fedgrem-figure-3-mor")
    error = {m: mean(found, "theta_mean", method=m) for m in found.distinct("method")}
    pulled = [method for method in error if method.startswith("FedGrEM")]
    assert {"FedGrEM, adaptive", "FedGrEM, exact, federated start"} <= set(pulled)
    for method in pulled:
        assert error[method] < 0.5 * min(error[m] for m in error if m not in pulled)


def test_solved_exactly_a_longer_step_pools_less(toy):
    found = toy("fedgrem-tables-4-5")
    short, long = (mean(found, "theta_mean", update="exact", C_eta=c) for c in (0.55, 1.35))
    assert short < long
    for step in (0.55, 0.95):
        both = [mean(found, "theta_mean", update=u, C_eta=step) for u in ("exact", "two sweeps")]
        assert both[0] < both[1]


def test_huge_values_at_three_sites_ruin_means_and_leave_the_robust_centre(toy):
    found = toy("fedgrem-attacks").where(attack="data of size 1e6")
    error = {m: mean(found, "theta_max", method=m) for m in found.distinct("method")}
    assert error["FedEM"] > 1e4
    assert error["adaptive"] < error["exact, .95"] < error["two sweeps, .95"] < 10


@pytest.mark.parametrize(("sweeps", "solver"), [(None, "exact"), (2, "alternating")])
@pytest.mark.parametrize("family", ["gaussian", "regression"])
def test_where_nothing_needs_a_guard_the_printed_algorithm_and_ours_are_one(
    family, sweeps, solver, monkeypatch
):
    monkeypatch.setattr(printed_algorithm, "ROUNDS", 400)
    monkeypatch.setattr(printed_algorithm, "SMALL_CHANGE", 0.0)
    constant, ours = 0.55, {"solver": solver, "max_rounds": 1000, "tol": 1e-10}
    if family == "gaussian":
        sim = make_gaussian_mixtures(heterogeneity=0.5, n_outliers=0, random_state=0)
        local = LocalEM(5, init="ward").fit(sim.clients)
        start = printed_algorithm.in_one_order(local.weights_, local.means_)[1]
    else:
        sim = make_regression_mixtures(6, 600, heterogeneity=0.5, n_outliers=0, random_state=0)
        start, constant = sim.components, 0.25
        ours |= {"family": "regression", "sigma": 1.0}
    model = FedGrEM(5, shrinkage="paper", init=start, step_constant=constant, **ours)
    model.fit(sim.clients)
    assert model.halvings_.sum() == 0
    # From given components a site first finds its weights, in thirty passes.
    m, n = sim.clients.n_clients, int(sim.clients.sizes[0])
    X = sim.clients.X.reshape(m, n, -1)
    y = None if family == "gaussian" else sim.clients.y.reshape(m, n, 1)
    weights = np.full(start.shape[:2], 0.2)
    for _ in range(30):
        weights, _ = printed_algorithm._gradient(X, y, weights, start)
    found = printed_algorithm.unguarded(sim, (weights, start), constant, sweeps)
    fitted = model.means_ if family == "gaussian" else model.coef_
    np.testing.assert_allclose(found, fitted, atol=1e-7)


def test_unguarded_one_sweep_leaves_more_of_the_outlier_than_two_and_two_more_than_all(toy):
    found = toy("fedgrem-unguarded").where(family="gaussian", C_eta=0.55)
    one, two, exact = (
        mean(found, "theta_mean", method=m) for m in ("one sweep", "two sweeps", "exact")
    )
    assert exact < two < one


def test_unguarded_regressions_need_the_solved_update_and_the_federated_start(toy):
    found = toy("fedgrem-unguarded").where(family="regression")
    error = {
        (m, s): mean(found, "theta_mean", method=m, start=s)
        for m in found.distinct("method")
        for s in found.distinct("start")
    }
    for start in ("best of thirty", "federated"):
        assert error["exact", start] < error["two sweeps", start]
        assert error["two sweeps", start] < error["Local-EM", "best of thirty"]


def test_the_bound_is_far_above_and_the_error_falls_with_n(toy):
    found = toy("fedgrem-bounds")
    assert min(found.column("bound / measured")) > 1000
    assert mean(found, "measured", n=600) < 0.7 * mean(found, "measured", n=150)


def test_after_joining_a_group_is_the_same_digit_for_every_writer(toy):
    found = toy("fedgrem-tables-1-6")
    once = {m: mean(found, "one_matching", method=m) for m in found.distinct("method")}
    each = {m: mean(found, "error", method=m) for m in found.distinct("method")}
    for method in ("FedGrEM", "FedGrEM, adaptive"):
        assert once[method] < 25 < 60 < once["Local-EM"]
        assert each[method] < each["FedEM"] < each["Pooled-EM"]


def test_pictures_are_better_than_chance_and_one_matching_needs_joining(toy):
    found = toy("fedgrem-tables-3-8")
    once = {m: mean(found, "one_matching", method=m, share="0%") for m in found.distinct("method")}
    assert once["FedGrEM"] < once["Local-EM"] and once["FedEM"] < once["Local-EM"]
    assert max(found.column("error")) < 80


def test_every_printed_entry_has_a_row():
    assert {t: len(printed(t)) for t in range(1, 9)} == {
        1: 28, 2: 28, 3: 28, 4: 63, 5: 72, 6: 28, 7: 28, 8: 28,
    }  # fmt: skip
    assert printed(1)["0%", "FedGrEM"] == "9.62 (1.03)"
    assert printed(5)["0.95", "1.75"] == "2.14 (1.05)"
    assert printed(8)["24%", METHODS[-1]] == "147.38 (27.98)"


@pytest.mark.parametrize(
    ("name", "tables"),
    [("fedgrem-tables-1-6", (1, 6)), ("fedgrem-tables-4-5", (4, 5))],
)
def test_every_entry_of_a_table_is_claimed(toy, name, tables):
    study = catalogue()[name]
    rows = [toy(name), *(Results([]) for _ in study.beside)]
    entries = [claim.entry for claim in study.claims(*rows)]
    for table in tables:
        claimed = [entry for entry in entries if entry.startswith(f"Table {table}, ")]
        assert len(claimed) >= len(printed(table))
