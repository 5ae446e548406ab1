"""Values far beyond the other sites' are refused, and cost nobody else anything."""

from dataclasses import replace

import numpy as np
import pytest

from fedkin import ODCL, FedGrEM
from fedkin.engines import InProcess
from fedkin.federation import Federation
from fedkin.protocol import Fault, Field, Reason, Replies
from fedkin.protocol.gate import compared

SCHEMA = {"coef": Field(("d",), "coefficients", reach=1e3), "other": Field((), "no reach")}


def replies(*largest):
    coef = np.array([[0.1 * x, -x] for x in largest])
    return Replies(np.arange(2, 2 + len(coef)), {"coef": coef, "other": np.full(len(coef), 1e80)})


def test_the_median_site_sets_the_scale():
    kept, faults = compared(SCHEMA, replies(1.0, 2.0, 3.0, 3.0, 2999.0, 3001.0, 1e99))
    assert faults == dict.fromkeys((7, 8), Fault(Reason.SCALE, "coef"))
    assert kept.clients.tolist() == [2, 3, 4, 5, 6] and kept["coef"].shape == (5, 2)


def test_zeros_and_few_sites_set_none():
    for sent in (replies(1.0, 1.0, 1e99), replies(0.0, 0.0, 0.0, 0.0, 1e-12, 1.0, 1.0)):
        assert compared(SCHEMA, sent) == (sent, {})


class WithLiar:
    """The engine of one process, with fields of one site's replies changed."""

    def __init__(self, name, lies):
        self.name, self.lies = name, lies

    def run(self, algorithm, settings, federation, seed=0):
        def spoilt(step):
            def function(clients, *rest, **wanted):
                reply, memory = step.function(clients, *rest, **wanted)
                reply = {name: np.array(array) for name, array in reply.items()}
                if self.name in clients.names:
                    k = clients.names.index(self.name)
                    for field in self.lies.keys() & reply.keys():
                        reply[field][k] = self.lies[field](reply[field][k])
                return reply, memory

            return replace(step, function=function)

        steps = {name: spoilt(step) for name, step in algorithm.steps.items()}
        return InProcess().run(replace(algorithm, steps=steps), settings, federation, seed)


def two_groups(n_sites=6):
    rng = np.random.default_rng(0)
    shift = 4.0 * (np.arange(60) % 2)[:, None]
    return {f"s{k}": rng.normal(size=(60, 2)) + shift for k in range(n_sites)}


@pytest.mark.filterwarnings("ignore")
def test_components_of_1e99_cost_their_site_only():
    sites = two_groups()
    data = Federation.from_clients(sites)
    engine = WithLiar("s5", {"components": lambda a: np.full_like(a, 1e99)})
    lied = FedGrEM(2, random_state=0, engine=engine).fit(data)
    assert {refusal.reason for refusal in lied.refusals_} == {Reason.SCALE}
    away = InProcess(absent=lambda number, names: ["s5"])
    without = FedGrEM(2, random_state=0, engine=away).fit(data)
    np.testing.assert_array_equal(lied.means_[:5], without.means_[:5])


@pytest.mark.filterwarnings("ignore")
def test_a_negative_variance_costs_its_site_only():
    data = Federation.from_clients(two_groups())
    engine = WithLiar("s5", {"variances": lambda a: -a})
    lied = FedGrEM(2, random_state=0, engine=engine).fit(data)
    assert {(r.site, r.reason) for r in lied.refusals_} == {("s5", Reason.RANGE)}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "lies",
    [
        {"statistics": lambda s: 10 * s},
        {"rows": lambda n: 10 * n},
        {"statistics": lambda s: np.append(s[:-1], 1e6 * s[-1]), "rows": lambda n: 1e6 * n},
    ],
    ids=["ten times the sums", "ten times the rows", "a million rows in both"],
)
def test_rows_that_the_sums_do_not_have_are_seen(lies):
    rng = np.random.default_rng(1)
    sites = {}
    for k in range(8):
        X = rng.normal(size=(40, 2))
        sites[f"s{k}"] = (X, X @ [1.0, (-1.0) ** k] + 0.3 * rng.normal(size=40))
    data = Federation.from_clients(sites)
    fitted = ODCL(random_state=0, engine=WithLiar("s3", lies)).fit(data)
    assert list(fitted.implausible_sites_) == ["s3"]
