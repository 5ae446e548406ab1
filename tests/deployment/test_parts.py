"""Parts of rows that have left: the quick search finds what a look at all of them finds."""

from __future__ import annotations

import numpy as np
import pytest

from fedkin.privacy.disclosure import parts as module
from fedkin.privacy.disclosure.look import effective_rows
from fedkin.privacy.disclosure.parts import Parts

LEAST = 10


class Plain:
    """Every part that left is looked at, one by one."""

    def __init__(self, most):
        self.left, self.most = [], most

    def as_it_was(self, rows, value):
        left = [(kept, was) for kept, was in self.left if was.shape == value.shape]
        apart = [np.abs(kept - rows) for kept, _ in left]
        if any(not d.any() for d in apart):
            return None
        for d, (_, was) in zip(apart, left):
            if effective_rows(d.sum(), np.square(d).sum()) < LEAST:
                return was
        return None

    def leaves(self, rows, value):
        if not any(np.array_equal(rows, kept) for kept, _ in self.left):
            self.left.append((rows, value))

    def write(self):
        self.left = self.left[-self.most :]


def questions(seed, n=60, n_questions=300, scale=1.0):
    """Groups of rows that wander, come back, and differ by a row or by many."""
    rng = np.random.default_rng(seed)
    members, soft = rng.random(n) < 0.5, np.zeros(n)
    for number in range(n_questions):
        kind = rng.integers(4)
        if kind == 0:
            members, soft = rng.random(n) < rng.random(), np.zeros(n)
        elif kind == 1:
            members = members ^ (rng.random(n) < 3 / n)
        elif kind == 2:
            soft = 0.3 * rng.normal(size=n)
        shape = (2,) if rng.random() < 0.9 else (3,)
        yield scale * np.clip(members + soft, 0.0, 1.0), np.full(shape, float(number))


@pytest.mark.parametrize("folder", [True, False], ids=["on disk", "in memory"])
@pytest.mark.parametrize("seed, scale", [(0, 1.0), (1, 1.0), (2, 7.5), (3, 0.01)])
def test_the_quick_search_is_the_plain_one(seed, scale, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST_KEPT", 60 * 80)
    place = tmp_path / "parts" if folder else None
    quick, plain, n_near = Parts(place, LEAST), Plain(80), 0
    for number, (rows, value) in enumerate(questions(seed, scale=scale)):
        found, wanted = quick.as_it_was("f", rows, value), plain.as_it_was(rows, value)
        assert (found is None) == (wanted is None)
        if wanted is not None:
            n_near += 1
            np.testing.assert_array_equal(found, wanted)
        else:
            quick.leaves("f", rows, value)
            plain.leaves(rows, value)
        quick.write()
        plain.write()
        if folder and number == 150:
            quick = Parts(place, LEAST)
    assert n_near > 20, "the sequence has parts that differ by few rows"
    assert len(plain.left) > 20
