"""Benefit where sites hold their own rows: two rounds, and the numbers of one process."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from fedkin import FMLR, IFCA, ODCL, Federation, InProcess, MixedModel
from fedkin.inference import benefit


@dataclass(frozen=True)
class Sites:
    """An engine whose sites have data of their own; what was asked of them is kept."""

    data: Federation
    asked: list = field(default_factory=list)

    def run(self, algorithm, settings, federation, seed=0):
        assert federation is None
        run = InProcess().run(algorithm, settings, self.data, seed)
        self.asked.append((algorithm.name, run.traffic))
        return run


def made(m=8, n=20, seed=0):
    rng = np.random.default_rng(seed)
    groups = np.repeat([f"site-{k}" for k in range(m)], n)
    X = rng.normal(size=(m * n, 2))
    own = np.repeat(rng.normal(size=(m, 3)) * [0.3, 0.3, 1.0], n, axis=0)
    y = X @ [1.0, 2.0] + (X * own[:, :2]).sum(axis=1) + own[:, 2] + 0.5 * rng.normal(size=m * n)
    return Federation.from_groups(X, groups, y)


def test_the_numbers_are_those_of_one_process_and_only_sums_and_scores_travel():
    data = made()
    sites = Sites(data)
    there = benefit(MixedModel(engine=sites), folds=5)
    here = benefit(MixedModel(), data, folds=5, new_sites=False)
    for metric in ("log", "rmse"):
        np.testing.assert_allclose(
            there.held_out.means(metric), here.held_out.means(metric), rtol=1e-6
        )
    np.testing.assert_allclose(there.interval, here.interval, rtol=1e-5, atol=1e-8)
    assert list(there.verdicts) == list(here.verdicts)
    left = [set(traffic.bytes_up_by_field) for _, traffic in sites.asked]
    assert left == [{"statistics"}, {"totals", "products", "rows"}]


def test_a_site_with_few_rows_in_a_fold_takes_no_part():
    data = made()
    kept = (data.owner != 2) | (np.arange(len(data.X)) % 20 < 7)
    few = Federation.from_groups(data.X[kept], data.owner[kept], data.y[kept])
    found = benefit(MixedModel(engine=Sites(few)), folds=5)
    assert np.isnan(found.gain[2]) and np.isfinite(np.delete(found.gain, 2)).all()
    assert found.verdicts[2] == "cannot tell"
    silent = [site for site, n in zip(found.sites, found.held_out.sizes) if not n]
    assert len(silent) == 1 and f"Nothing is known of site '{silent[0]}'" in str(found.summary())
    with pytest.raises(ValueError, match="fewer folds"):
        benefit(MixedModel(engine=Sites(made(n=6))), folds=5)


@pytest.mark.parametrize("model", [ODCL(random_state=0), FMLR(random_state=0)])
def test_sites_of_kinds_are_asked_the_same_and_predict_the_same(model):
    """Log scores are those of normal laws at sites; in one process FMLR's are of mixtures."""
    data = kinds()
    sites = Sites(data)
    there = benefit(model.set_params(engine=sites), folds=5)
    here = benefit(model.set_params(engine=None), data, folds=5, new_sites=False)
    np.testing.assert_allclose(there.held_out.means("rmse"), here.held_out.means("rmse"), rtol=1e-6)
    np.testing.assert_allclose(there.held_out.means("log"), here.held_out.means("log"), atol=0.1)
    assert list(there.verdicts) == list(here.verdicts)
    left = [set(traffic.bytes_up_by_field) for _, traffic in sites.asked]
    assert left == [{"statistics"}, {"totals", "products", "rows"}]


def kinds(m=12, n=20, seed=0):
    """Sites of two far kinds."""
    rng = np.random.default_rng(seed)
    site = np.repeat(np.arange(m), n)
    X = rng.normal(size=(m * n, 2))
    y = np.where(site % 2, 1.0, -1.0) * X.sum(axis=1) + 0.5 * rng.normal(size=m * n)
    return Federation.from_groups(X, site, y)


@pytest.mark.parametrize(
    "model",
    [
        ODCL(send="model"),
        ODCL(loss="logistic"),
        FMLR(share="sums"),
        IFCA(2),
        MixedModel(family="binomial"),
        MixedModel(fit_intercept=False),
    ],
)
def test_what_sums_cannot_answer_is_said(model):
    with pytest.raises(ValueError, match="at real sites"):
        benefit(model.set_params(engine=Sites(made(m=2))))
