"""Sites that send numbers no rows can give cost ODCL themselves only, and are named."""

from dataclasses import replace

import numpy as np
import pytest

from fedkin import ODCL
from fedkin.datasets import make_sparse_regressions
from fedkin.datasets.odcl import APPENDIX_D2
from fedkin.engines import InProcess
from fedkin.estimators.fmlr import ImplausibleSitesWarning

GROUPS = make_sparse_regressions(80, n_clients=24, intervals=APPENDIX_D2, random_state=0)
LIAR = GROUPS.federation.names[7]


class WithLiar:
    """The engine of one process, with one site's reply changed after it is made."""

    def __init__(self, field, lie):
        self.field, self.lie = field, lie

    def run(self, algorithm, settings, federation, seed=0):
        def spoilt(step):
            def function(clients, *rest, **fields):
                reply, memory = step.function(clients, *rest, **fields)
                reply = {name: array.copy() for name, array in reply.items()}
                if self.field in reply and LIAR in clients.names:
                    k = clients.names.index(LIAR)
                    reply[self.field][k] = self.lie(reply[self.field][k])
                return reply, memory

            return replace(step, function=function)

        steps = {name: spoilt(step) for name, step in algorithm.steps.items()}
        return InProcess().run(replace(algorithm, steps=steps), settings, federation, seed)


@pytest.mark.parametrize(
    ("field", "lie", "how"),
    [
        ("rows", lambda rows: rows * 1e13, {"aggregate": "size", "n_clusters": 4}),
        ("statistics", lambda s: -s, {}),
        ("covariance", lambda c: -c, {"send": "covariance"}),
        ("covariance", lambda c: np.arange(len(c), dtype=float), {"send": "covariance"}),
        ("statistics", lambda s: -s, {"aggregate": "statistics"}),
        ("statistics", lambda s: s[::-1].copy(), {"aggregate": "statistics"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_liar_is_left_out_and_named(field, lie, how):
    plain = {"fit_intercept": False, "random_state": 0, **how}
    with pytest.warns(ImplausibleSitesWarning, match=f"no rows can give .*'{LIAR}'"):
        fitted = ODCL(engine=WithLiar(field, lie), refine_rounds=1, **plain).fit(GROUPS.federation)
    assert list(fitted.implausible_sites_) == [LIAR] and fitted.labels_[7] == -1
    others = np.flatnonzero(np.arange(24) != 7)
    alone = ODCL(refine_rounds=1, **plain).fit(GROUPS.federation.take(others))
    np.testing.assert_allclose(fitted.coef_[others], alone.coef_, rtol=1e-9)
    assert np.isfinite(fitted.coef_[7]).all()


def test_fewer_rows_than_none_are_refused_at_the_gate():
    engine = WithLiar("rows", lambda rows: -rows)
    with pytest.warns(UserWarning, match=f"'{LIAR}': a value that cannot be in 'rows'"):
        fitted = ODCL(fit_intercept=False, random_state=0, engine=engine).fit(GROUPS.federation)
    assert list(fitted.missing_sites_) == [LIAR]


@pytest.mark.parametrize("choice", [99.0, -1.0, 0.5])
def test_a_choice_that_is_none_is_passed_over(choice):
    engine = WithLiar("choice", lambda _: choice)
    fitted = ODCL(4, refine_rounds=2, fit_intercept=False, random_state=0, engine=engine)
    fitted.fit(GROUPS.federation)
    assert GROUPS.recovers(fitted.labels_)


def test_one_wild_model_does_not_hide_the_clusters_from_the_robust_fit():
    engine = WithLiar("model", lambda model: 1e6 * np.ones_like(model))
    how = {"send": "covariance", "fit_intercept": False}
    fitted = ODCL(robust=True, random_state=0, engine=engine, **how)
    fitted.fit(GROUPS.federation)
    assert list(fitted.odd_sites_) == [LIAR]
    rest = np.arange(24) != 7
    assert fitted.n_clusters_ == 4
    truth = GROUPS.labels[rest]
    pairs = set(zip(truth, fitted.labels_[rest]))
    assert len(pairs) == 4
