"""Sites that send numbers no rows can give cost themselves only, and are named."""

from dataclasses import replace

import numpy as np
import pytest

from fedkin import FMLR, Federation
from fedkin.algorithms import algorithm
from fedkin.datasets import make_regression_groups
from fedkin.datasets.fmlr import PAPER_COEF
from fedkin.engines import InProcess
from fedkin.estimators.fmlr import ImplausibleSitesWarning
from fedkin.models.least_squares import packed_statistics, possible

GROUPS = make_regression_groups(30, 12, PAPER_COEF[3], random_state=3)
LIAR = GROUPS.federation.names[7]


class WithLiar:
    """The engine of one process, with one site's replies changed after they are made."""

    def __init__(self, step, field, lie):
        self.step, self.field, self.lie = step, field, lie

    def run(self, fmlr, settings, federation, seed=0):
        def spoilt(step):
            def function(clients, *rest, **wanted):
                reply, memory = step.function(clients, *rest, **wanted)
                reply = {name: array.copy() for name, array in reply.items()}
                if LIAR in clients.names:
                    self.lie(reply[self.field][clients.names.index(LIAR), ...])
                return reply, memory

            return replace(step, function=function)

        steps = dict(fmlr.steps) | {self.step: spoilt(fmlr.steps[self.step])}
        return InProcess().run(replace(fmlr, steps=steps), settings, federation, seed)


def put(place, value):
    def lie(reply):
        reply[place] = value

    lie.__name__ = f"{place}={value}"
    return lie


def grow(reply):
    reply *= 1e40


def turn(reply):
    reply *= -1


def likelier(reply):
    reply += 1e5


def everywhere(reply):
    """Of every start but the first (R, K, q): in all groups at once, with the same sums."""
    reply[1:] = reply[1:].sum(axis=1, keepdims=True)


def statistics_without_rows(reply):
    """Every pair of columns is possible, all together are not."""
    size = 7
    gram = np.full((size, size), -0.9) + 1.9 * np.eye(size)
    reply[:-1] = 100 * gram[np.triu_indices(size)]
    reply[-3] = reply[-2] = 0.0
    reply[:-1][np.flatnonzero(np.triu_indices(size)[1] == size - 2)] = 0.0
    reply[-4] = reply[-1] = 100.0


def check(fitted, others):
    assert list(fitted.implausible_sites_) == [LIAR]
    assert fitted.n_components_ == others.n_components_
    np.testing.assert_allclose(fitted.sigma_, others.sigma_, rtol=1e-6)
    order = [int(np.argmin(np.abs(others.coef_ - c).sum(axis=1))) for c in fitted.coef_]
    np.testing.assert_allclose(fitted.coef_, others.coef_[order], atol=1e-4)
    assert np.isfinite(fitted.responsibilities_).all()


def without_liar(**parameters):
    keep = [k for k, name in enumerate(GROUPS.federation.names) if name != LIAR]
    return FMLR(random_state=0, max_components=4, **parameters).fit(GROUPS.federation.take(keep))


def fit_with_liar(step, field, lie, **parameters):
    engine = WithLiar(step, field, lie)
    model = FMLR(random_state=0, max_components=4, engine=engine, **parameters)
    with pytest.warns(ImplausibleSitesWarning, match=f"1 of 30 sites sent .*{LIAR!r}"):
        return model.fit(GROUPS.federation)


STATISTICS_LIES = [
    put(-1, -5.0),
    put(-1, 0.0),
    put(-1, 1e50),
    put(-2, -1e6),
    put(-2, 0.0),
    put(0, -1.0),
    put(1, 1e90),
    turn,
    statistics_without_rows,
]


@pytest.mark.parametrize("robust", [False, True])
@pytest.mark.parametrize("lie", STATISTICS_LIES, ids=lambda f: f.__name__)
def test_impossible_statistics_cost_their_site_only(lie, robust):
    fitted = fit_with_liar("statistics", "statistics", lie, robust=robust)
    check(fitted, without_liar(robust=robust))
    np.testing.assert_allclose(fitted.responsibilities(LIAR), fitted.weights_)


@pytest.mark.parametrize(
    ("step", "field", "lie"),
    [
        ("target", "target", put(0, -5.0)),
        ("target", "target", put(0, 1e50)),
        ("target", "target", put(0, 1e9)),
        ("target", "target", put(2, -1e6)),
        ("target", "target", put(3, 2.0)),
        ("random_sums", "sums", turn),
        ("random_sums", "sums", everywhere),
        ("random_sums", "sums", put(np.s_[..., -1], 1e9)),
        ("weighted_sums", "sums", turn),
        ("weighted_sums", "sums", grow),
        ("weighted_sums", "sums", put(np.s_[..., -1], 1e9)),
        ("weighted_sums", "sums", put(np.s_[..., -2], -1e9)),
        ("weighted_sums", "sums", put(np.s_[:, 0], 0.0)),
        ("weighted_sums", "counts", put(np.s_[...], 1.0)),
        ("weighted_sums", "loglik", likelier),
    ],
    ids=lambda part: part if isinstance(part, str) else part.__name__,
)
def test_impossible_replies_in_any_round_cost_their_site_only(step, field, lie):
    check(fit_with_liar(step, field, lie, share="sums"), without_liar(share="sums"))


def test_a_likelihood_that_a_site_cannot_have_is_seen_also_at_the_end():
    fitted = fit_with_liar("settle", "loglik", likelier, share="sums")
    assert list(fitted.implausible_sites_) == [LIAR]


def test_when_nobody_is_possible_the_run_says_so():
    def everybody(step):
        def function(clients, *rest, **wanted):
            reply, memory = step.function(clients, *rest, **wanted)
            return {name: -array for name, array in reply.items()}, memory

        return replace(step, function=function)

    fmlr = algorithm("fmlr")
    broken = replace(fmlr, steps={name: everybody(step) for name, step in fmlr.steps.items()})
    for share in ("statistics", "sums"):
        with pytest.raises(ValueError, match="no site sent statistics that rows can give"):
            InProcess().run(broken, fmlr.settings(share=share), GROUPS.federation, 0)


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("kind", ["few rows", "off centre", "tiny", "huge", "constant", "zero"])
def test_what_rows_give_is_always_possible(kind, fit_intercept):
    rng = np.random.default_rng(0)
    clients = []
    for n in (1, 2, 3, 5, 40, 1000):
        X, y = rng.normal(size=(n, 5)), rng.normal(size=n)
        change = {
            "few rows": lambda X: X,
            "off centre": lambda X: X + 1e9,
            "tiny": lambda X: X * 1e-140,
            "huge": lambda X: X * 1e40,
            "constant": lambda X: np.full_like(X, 0.1),
            "zero": lambda X: 0 * X,
        }[kind]
        clients.append((change(X), change(y)))
    statistics = packed_statistics(Federation.from_clients(clients), fit_intercept)
    assert possible(statistics, fit_intercept).all()


def test_statistics_whose_intercept_does_not_count_the_rows_are_impossible():
    """A large square of the intercept makes any other sums possible: only the count tells."""
    statistics = packed_statistics(GROUPS.federation, True)
    size = GROUPS.federation.n_features + 2
    intercept = np.flatnonzero(np.equal(*np.triu_indices(size)))[-2]
    assert possible(statistics, True).all()
    statistics[intercept, 3] *= 2.0
    assert list(np.flatnonzero(~possible(statistics, True))) == [3]
    assert possible(statistics, False).all()


def test_group_probabilities_that_do_not_add_to_one_are_impossible():
    """Sums and counts halved together still fit each other."""

    class Halving(WithLiar):
        def __init__(self):
            super().__init__("weighted_sums", "counts", None)

        def run(self, fmlr, settings, federation, seed=0):
            def halved(step):
                def function(clients, *rest, **wanted):
                    reply, memory = step.function(clients, *rest, **wanted)
                    reply = {name: array.copy() for name, array in reply.items()}
                    k = clients.names.index(LIAR)
                    reply["sums"][k] *= 0.5
                    reply["counts"][k] *= 0.5
                    return reply, memory

                return replace(step, function=function)

            steps = {**fmlr.steps, "weighted_sums": halved(fmlr.steps["weighted_sums"])}
            return InProcess().run(replace(fmlr, steps=steps), settings, federation, seed)

    model = FMLR(3, share="sums", random_state=0, engine=Halving())
    with pytest.warns(ImplausibleSitesWarning, match=f"1 of 30 sites sent .*{LIAR!r}"):
        model.fit(GROUPS.federation)
