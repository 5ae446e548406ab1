"""Answers that are kept by the content of what was asked."""

import numpy as np

from fedkin import FMLR, ODCL, Federation
from fedkin.algorithms import odcl_rivals
from fedkin.models import kinds_degrees_fit
from fedkin.models.last_answers import MOST, LastAnswers


def test_the_same_question_is_answered_once_and_any_other_anew():
    kept, asked = LastAnswers[int](), []

    def ask(values, words="ml"):
        return kept.of([np.asarray(values)], words, lambda: asked.append(values) or len(asked))

    assert ask([1.0, 2.0]) == ask([1.0, 2.0]) == 1
    others = [ask([1.0, 2.5]), ask([[1.0, 2.0]]), ask([1, 2]), ask([1.0, 2.0], "reml")]
    assert others == [2, 3, 4, 5]
    assert MOST == 4 and ask([1.0, 2.0]) == 6  # five questions later it is forgotten
    assert ask([1, 2]) == 4


def test_a_kept_mixed_model_changes_no_bit_of_a_fit(monkeypatch):
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(12), 8)
    X = rng.normal(size=(96, 2))
    coef = np.where(np.arange(12)[:, None] % 2, 1.0, -1.0) + 0.2 * rng.normal(size=(12, 2))
    data = Federation.from_groups(X, owner, (X * coef[owner]).sum(axis=1) + rng.normal(size=96))

    def found():
        kinds = [FMLR(k, random_state=0).fit(data).coef_.tobytes() for k in (2, 3)]
        return [*kinds, str(ODCL(2, random_state=0).fit(data).summary())]

    with_memory = found()
    for place in (odcl_rivals, kinds_degrees_fit):
        monkeypatch.setattr(place, "MIXED_MODELS", _Forgetful())
    assert with_memory == found()


class _Forgetful:
    def of(self, asked, words, compute):
        return compute()
