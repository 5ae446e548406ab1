"""FedGrEM with labels where sites may tell little, drop out, or lie; and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
from tests.maths.test_sureness import N_CLASSES, fitted, known, loss, people

from fedkin import Federation, FedGrEM
from fedkin.algorithms.mixtures import sureness
from fedkin.algorithms.mixtures.fedgrem import FEDGREM
from fedkin.algorithms.mixtures.turns import side_by_side
from fedkin.engines.inprocess import InProcess
from fedkin.protocol import Replies, TracedReply


def test_a_fit_stands_where_sites_may_not_tell_of_five_fits_at_once(monkeypatch):
    """Means of three groups in three columns, five times: more numbers than 120 rows may tell."""
    parts, whole = [], sureness.in_common_of
    monkeypatch.setattr(
        sureness, "in_common_of", lambda ways, part: parts.append(part) or whole(ways, part)
    )
    rows = people(m=6, n=120)
    model = fitted(rows, 0.5, engine=InProcess(disclosure="enforce", progress=False))
    assert np.isfinite(model.predict_proba(rows[0], groups=rows[2])).all()
    assert parts and parts[0].max() == 1


def test_a_site_that_drops_out_ends_nothing():
    rows = people(m=6)
    for labels in (0.3, None):
        engine = InProcess(absent=lambda number, names: ["2"] if number > 3 else [], progress=False)
        if labels:
            model = fitted(rows, labels, engine=engine)
        else:
            model = FedGrEM(N_CLASSES, covariance_type="full", random_state=0, engine=engine)
            model.fit(rows[0], groups=rows[2])
        assert np.isfinite(model.score_samples(rows[0], groups=rows[2])).all()


def test_a_scatter_that_cannot_be_costs_nobody_the_prediction(monkeypatch):
    rows = people(m=6)

    step = FEDGREM.steps["labelled"]

    def lying(clients, cache, *rest):
        reply, memory = step.function(clients, cache, *rest)
        scatter = np.array(reply["scatter"])
        scatter[0] *= -5.0
        return TracedReply({**reply, "scatter": scatter}, reply.behind), memory

    honest = fitted(rows, 0.3)
    monkeypatch.setitem(FEDGREM.steps, "labelled", replace(step, function=lying))
    model, others = fitted(rows, 0.3), rows[2] > 0
    assert np.isfinite(model.predict_proba(rows[0], groups=rows[2])).all()
    told = [loss(one, *(part[others] for part in rows)) for one in (model, honest)]
    assert told[0] < 1.3 * told[1] + 0.05


def test_a_site_s_own_weights_do_not_rule_out_classes_of_which_it_has_no_label():
    X, y, site = people(m=6)
    some = known(len(y), 0.3) & ~((site == 0) & (y == 2))
    model = FedGrEM(N_CLASSES, covariance_type="full", share_weights=False, random_state=0)
    model.fit(X, np.where(some, y, -1), groups=site)
    asked = (site == 0) & (y == 2)
    share = model.predict_proba(X[asked], groups=site[asked])
    assert np.mean(share.argmax(axis=1) == 2) > 0.5
    model.adapt(X[:5], np.array([0, -1, -1, -1, -1]), groups="new")
    assert model.predict_proba(X, groups=np.full(len(X), "new")).max(axis=1).min() < 0.99


def test_labels_beside_a_federation_are_refused():
    X, y, site = people(m=4)
    with pytest.raises(ValueError, match="beside a Federation"):
        FedGrEM(N_CLASSES, covariance_type="full").fit(Federation.from_groups(X, site), y)


def test_of_questions_in_turn_one_that_nobody_answers_leaves_nobody():
    some = Replies(np.arange(2), {"rows": np.ones(2), "counts": np.ones((2, 1, 3))})
    nobody = Replies(np.empty(0, dtype=np.intp), {})
    for found in ([some, nobody], [nobody, some]):
        assert len(side_by_side(found).clients) == 0
    assert side_by_side([some, some])["counts"].shape == (2, 2, 3)
