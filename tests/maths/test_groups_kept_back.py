"""FedGrEM where sites have disclosure rules: starts in turn, groups kept back, who is left out."""

import warnings

import numpy as np
import pytest

from fedkin import Federation, FedGrEM
from fedkin.algorithms.mixtures import shared_start, turns
from fedkin.engines.inprocess import InProcess
from fedkin.protocol import Ask, QuorumLost, Replies
from fedkin.shrinkage import borrowed

RULES = {"engine": InProcess(disclosure="enforce", progress=False), "random_state": 0}


def hospitals(sizes, n_groups=3, d=4, seed=0):
    """Rows of groups that are 3 apart in every column or more, about; and new rows."""
    rng = np.random.default_rng(seed)
    centers = 3.0 * rng.normal(size=(n_groups, d))
    tables, new = {}, {}
    for k, n in enumerate(sizes):
        own = centers + 0.3 * rng.normal(size=centers.shape)
        for where, rows in ((tables, n), (new, 100)):
            label = rng.integers(0, n_groups, rows)
            where[f"h{k}"] = own[label] + rng.normal(size=(rows, d))
    return Federation.from_clients(tables), Federation.from_clients(new)


# --- starts in turn ------------------------------------------------------------------------------


def about(some):
    return Ask("step", {"starts": np.arange(5.0)[some]})


def reply(ask, clients):
    starts = ask.common["starts"]
    return Replies(clients, {"rows": clients + 10.0, "means": clients[:, None] + starts})


def answered(asked, at_once, alone):
    """Drive a question; sites `at_once` answer to several starts, sites `alone` to one."""
    asks, made = [], asked.ask(about, 5)
    try:
        ask = next(made)
        while True:
            asks.append(ask)
            who = at_once if len(ask.common["starts"]) > 1 else alone
            who = who if ask.who is None else np.intersect1d(who, ask.who)
            ask = made.send(reply(ask, who))
    except StopIteration as ended:
        return asks, ended.value


def test_starts_are_asked_about_in_turn_only_where_that_brings_sites_back():
    everybody = np.arange(4)
    asked = turns.Turns(4)
    asked.expected[:] = True
    asks, found = answered(asked, everybody, everybody)
    assert len(asks) == 1 and not asked.in_turn
    whole = reply(about(slice(None)), everybody)

    asked = turns.Turns(4)
    asked.expected[:] = True
    asks, found = answered(asked, everybody[:2], everybody)
    assert asked.in_turn and [len(ask.common["starts"]) for ask in asks] == [5, 1, 1, 1, 1, 1, 1]
    np.testing.assert_array_equal(asks[1].who, [2, 3])
    assert not asks[0].needed and not asks[1].needed and asks[2].needed
    np.testing.assert_array_equal(found.clients, everybody)
    for name in found:
        np.testing.assert_array_equal(found[name], whole[name])

    asked = turns.Turns(4)
    asked.expected[:] = True
    asks, found = answered(asked, everybody[:2], everybody[:2])
    assert not asked.in_turn and len(asks) == 2
    np.testing.assert_array_equal(found.clients, [0, 1])


def test_starts_in_turn_are_those_side_by_side():
    one, other = (Replies(np.array(who), {"x": np.array(who)[:, None]}) for who in ([0, 2], [1, 2]))
    found = turns.side_by_side([one, other])
    np.testing.assert_array_equal(found.clients, [2])
    np.testing.assert_array_equal(found["x"], [[2, 2]])
    assert turns.some_of_each(10) == [0, 1, 5, 6] and turns.some_of_each(2) == [0, 1]


def test_a_fit_is_the_same_with_starts_in_turn(monkeypatch):
    data, _ = hospitals([40] * 6)
    plain = FedGrEM(3, covariance_type="full", random_state=0).fit(data)

    def in_turn(n_clients):
        made = turns.Turns(n_clients)
        made.in_turn = True
        return made

    monkeypatch.setattr(shared_start, "Turns", in_turn)
    monkeypatch.setattr(turns, "STARTS_IN_TURN", 10)
    same = FedGrEM(3, covariance_type="full", random_state=0).fit(data)
    np.testing.assert_allclose(same.means_, plain.means_, atol=1e-4)
    assert same.n_rounds_ > plain.n_rounds_


# --- what sites experience -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["full", "diag"])
def test_hospitals_of_sixty_rows_take_part(kind):
    """Ten starts in one reply are more numbers than a third of their rows; one start is not."""
    data, new = hospitals([60] * 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = FedGrEM(3, covariance_type=kind, **RULES).fit(data)
    free = FedGrEM(3, covariance_type=kind, random_state=0).fit(data)
    assert found._result.heard.all() and found.converged_
    assert found.score(new) > free.score(new) - 0.35
    np.testing.assert_allclose(found.weights_.sum(axis=1), 1.0)


def test_groups_that_did_not_leave_are_told():
    data, _ = hospitals([60] * 8)
    with pytest.warns(UserWarning, match=r"Groups of few rows did not leave .*% of the rows"):
        found = FedGrEM(3, covariance_type="full", **RULES).fit(data)
    assert "did not leave" in str(found.summary())
    rest = found._result.kept_back
    assert (rest > 0).any() and not found.lacking_[rest > 0].any()


def test_a_site_that_may_tell_of_no_group_is_named_with_why_and_what_helps():
    data, new = hospitals([150] * 5 + [30])
    with pytest.warns(UserWarning, match=r"groups at site 'h5' \(.*parameters.*37 rows"):
        found = FedGrEM(3, covariance_type="full", **RULES).fit(data)
    assert not found._result.heard[5] and found._result.heard[:5].all()
    own, at = data.client(5)[0], {"X": new.client(5)[0], "groups": "h5"}
    before = found.score(**at)
    found.adapt(own, groups="h5")
    assert found.score(**at) > before


def test_where_nobody_may_tell_the_error_says_what_to_ask_for():
    data, _ = hospitals([30] * 5)
    with pytest.raises(QuorumLost, match=r"own rules keep it back.*fewer groups"):
        FedGrEM(3, covariance_type="full", **RULES).fit(data)


def test_rows_that_were_kept_back_count_for_weights_alone():
    counts = np.array([[20.0, 0.0, 0.0], [10.0, 10.0, 10.0], [5.0, 0.0, 25.0]])
    rows, usual = np.array([50.0, 30.0, 30.0 + 1e-9]), np.array([1.0, 2.0, 1.0])
    found = borrowed.members_of(counts, rows, usual)
    np.testing.assert_allclose(found, [[20.0, 20.0, 10.0], [10.0] * 3, [5.0, 0.0, 25.0]])
