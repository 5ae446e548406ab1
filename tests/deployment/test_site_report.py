"""A site's report: whether joining helped it, by its own left-out rows, or why nobody knows."""

from __future__ import annotations

import re

import numpy as np
import pytest

from fedkin import FMLR, MixedModel
from fedkin.durable import private_folder, save_arrays
from fedkin.engines.site_report import (
    BY_SUMS,
    MODEL_FILE,
    SCORES,
    SUMS,
    joining_in_words,
    site_report,
)
from fedkin.inference import benefit
from fedkin.privacy import Ledger
from fedkin.protocol import Reason
from tests.smoke.test_benefit_at_sites import Sites, made

N, FOLDS = 40, 4


def scored(tmp_path, gain):
    """Scores of 40 rows in 4 folds, as a site keeps them; the rows' own gains are given back."""
    rng = np.random.default_rng(0)
    logs = rng.normal(size=(N, 3))
    logs[:, 1] = logs[:, 0] + gain + rng.normal(size=N)
    each = np.stack([logs, -rng.gamma(2.0, size=(N, 3))], axis=1)
    fold = np.arange(N) % FOLDS
    totals = np.stack([each[fold == k].sum(axis=0) for k in range(FOLDS)])
    pairs = np.einsum("nsa,nsb->nsab", each, each)
    products = np.stack([pairs[fold == k].sum(axis=0) for k in range(FOLDS)])
    kept = {"own.totals": totals, "own.products": products, "own.rows": np.full(FOLDS, 10.0)}
    save_arrays(private_folder(tmp_path / f"r{SCORES}") / MODEL_FILE, kept)
    return logs[:, 1] - logs[:, 0], np.sqrt(-each[:, 1].mean(axis=0))


@pytest.mark.parametrize(
    ("gain", "verdict"),
    [(2.0, "It helped us"), (-2.0, "It hurt us"), (0.0, "Our rows cannot tell")],
)
def test_the_verdict_is_that_of_the_sites_own_rows(tmp_path, gain, verdict):
    by_row, errors = scored(tmp_path, gain)
    told = "\n".join(joining_in_words("r", "mixed_model", tmp_path))
    assert verdict in told and f"{N} rows of ours" in told
    shown = re.search(r"gains (\S+) \((\S+) to (\S+),", told).groups()
    half = 1.96 * np.sqrt(by_row.var() / N * (1 + FOLDS / (FOLDS - 1)))
    expected = by_row.mean() + np.array([0.0, -half, half])
    np.testing.assert_allclose(np.array(shown, dtype=float), expected, rtol=6e-3, atol=1e-3)
    assert f"alone {errors[0]:.4g}, joining {errors[1]:.4g}, one model" in told


def test_why_nobody_knows_is_said(tmp_path):
    assert "benefit = true" in joining_in_words("r", "fmlr", tmp_path)[0]
    assert "our policy left_out" in joining_in_words("r", "fgpr", tmp_path)[0]
    assert "cannot be asked of real sites for ifca" in joining_in_words("r", "ifca", tmp_path)[0]
    scored(tmp_path, 1.0)
    (tmp_path / f"r{SCORES}" / MODEL_FILE).write_bytes(b"damaged")
    assert "Not known" in joining_in_words("r", "fmlr", tmp_path)[0]


def test_what_left_for_the_question_is_counted_with_the_run(tmp_path):
    ledger = Ledger(tmp_path / "ledger")
    for run in ("r", f"r{SCORES}", "another"):
        ledger.record(run, 1, "step", ("a",), {"sums": np.ones((1, 3))})
    report = site_report("r", "fmlr", {"shared.coef": np.ones(2)}, ledger, tmp_path)
    assert "What left us: 2 replies, 48 bytes (sums)." in report
    assert "Did joining help us?" in report and "shared.coef (2,): 1, 1" in report


def test_a_report_says_which_rule_kept_the_answer_back(tmp_path):
    ledger = Ledger(tmp_path / "ledger")
    ledger.record("r", 0, "opening", ("a",), {}, Reason.COLUMN)
    ledger.record(f"r{SUMS}", 1, "sums", ("a",), {}, Reason.CELL)
    report = site_report("r", "fmlr", {}, ledger, tmp_path)
    assert "Not known: it was asked, and our part did not leave: too few rows in a cell" in report
    assert "Withheld by our rules: too few rows in a cell; merge levels" in report
    assert "column" not in report.replace("drop the column", ""), "no rule of ours"


def test_a_report_knows_two_ways_and_one_score(tmp_path):
    rng, n = np.random.default_rng(2), 40
    each = rng.normal(size=(2, n)) + np.array([[0.0], [3.0]])
    folder = tmp_path / f"r{SCORES}"
    folder.mkdir()
    own = {
        "own.totals": each.sum(axis=1)[None, None],
        "own.products": (each @ each.T)[None, None],
        "own.rows": np.array([float(n)]),
    }
    save_arrays(folder / MODEL_FILE, own)
    told = "\n".join(joining_in_words("r", "fedgrem", tmp_path))
    means = each.mean(axis=1)
    assert "It helped us: 40 rows" in told
    assert f"alone {means[0]:.4g}, joining {means[1]:.4g};" in told
    assert "one model" not in told and "squared error" not in told


@pytest.mark.parametrize("model", [MixedModel(), FMLR(2, random_state=0)])
def test_methods_said_to_go_by_sums_do(model):
    assert model._algorithm.name in BY_SUMS
    found = benefit(model.set_params(engine=Sites(made())), folds=5)
    assert np.isfinite(found.gain).all()
