"""What a site reads when a run has ended: what we learnt, did joining help us, what left us."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedkin.algorithms.held_out import HELD_OUT
from fedkin.arrays import Array, Arrays, Floats
from fedkin.durable import DAMAGE, load_arrays
from fedkin.privacy.ledger import Ledger
from fedkin.protocol import Reason
from fedkin.protocol.gate import WITHHELD

MODEL_FILE, REPORT_FILE = "model.npz", "report.txt"
# A run that asks whether joining helps goes by runs before it, with these ends to their names: sums
# and scores, or, where fits are gone through without each fold (LEFT_OUT), scores alone.
LEFT_OUT = "left_out"
SUMS, SCORES = ".held-out-sums", ".held-out-scores"
# The same of a run that asks which way of sharing fits.
WAYS_SUMS, WAYS_SCORES = ".ways-sums", ".ways-scores"
# Where ways are fitted in rounds: without each fold, and the number of groups before that.
WAYS_FITS, WAYS_NUMBER = ".ways-fits", ".ways-number"
# So do the checks of the table, and their words have a file beside the model.
CHECKS_RUN, CHECKS_FILE = ".checks", "checks.txt"
# Methods that can be fitted from sums of products by fold, and those fitted without each fold.
BY_SUMS = ("mixed_model", "fmlr", "odcl")
BY_FITS = ("fgpr", "fedgrem", "fedem", "fedgmm", "tgmm")
WAYS = ("alone", "joining", "one model for all")
# Numbers of an array that a report shows.
SHOWN_NUMBERS = 8
# Of a normal law, for intervals of 95 %.
QUANTILE = 1.96
LEAST_ROWS = 2
# How reasons begin that are rules of the site: a report to the site itself need not say so.
BY_RULE = "withheld by the site's rule: "


def site_report(
    run: str,
    method: str,
    model: Arrays,
    ledger: Ledger,
    state: Path,
    columns: Sequence[str] = (),
) -> str:
    """What the site learnt, whether joining helped it, and what left it, in words."""
    lines = [f"Run {run} of {method} has ended.", "", "What we learnt (model.npz):"]
    if columns:
        lines.append(
            f"  columns in order: {', '.join(columns)}; a level, if there is one, comes last"
        )
    lines += [_array_in_words(name, array) for name, array in model.items()]
    lines += ["", "Did joining help us?", *joining_in_words(run, method, state, ledger)]
    lines += ["", "What deserves a look in our table (checks.txt):", *checks_in_words(run, state)]
    ends = ("", SUMS, SCORES, WAYS_SUMS, WAYS_SCORES, WAYS_FITS, WAYS_NUMBER)
    runs = {run + end + checks for end in ends for checks in ("", CHECKS_RUN)}
    sent = [line for line in ledger.lines() if line["run"] in runs]
    left = [line for line in sent if line["withheld"] is None]
    size = sum(field["bytes"] for line in left for field in line["fields"].values())
    fields = sorted({name for line in left for name in line["fields"]})
    lines += ["", f"What left us: {len(left)} replies, {size:,} bytes ({', '.join(fields)})."]
    rules = sorted({Reason[line["withheld"]] for line in sent if line["withheld"]} & WITHHELD)
    told = "; ".join(rule.removeprefix(BY_RULE) for rule in rules)
    lines += [f"Withheld by our rules: {told}."] if rules else []
    lines += [
        "The numbers left as they are, without noise: there is no formal guarantee of privacy."
    ]
    return "\n".join(lines) + "\n"


def checks_in_words(run: str, state: Path) -> list[str]:
    """What the library's checks said of this site's table before the first round."""
    path = state / run / CHECKS_FILE
    if not path.exists():
        return ["  Not known: the job did not ask for checks."]
    return [f"  {line}" for line in path.read_text(encoding="utf-8").splitlines()]


def _array_in_words(name: str, array: Array) -> str:
    told = ", ".join(f"{x:.6g}" for x in np.ravel(array)[:SHOWN_NUMBERS])
    return f"  {name} {np.shape(array)}: {told}{' ...' * (array.size > SHOWN_NUMBERS)}"


def joining_in_words(run: str, method: str, state: Path, ledger: Ledger | None = None) -> list[str]:
    """What left-out rows of this site say, or why they say nothing."""
    if method in (HELD_OUT.name, LEFT_OUT):
        return ["  This run is part of that question."]
    found = _own_scores(state / (run + SCORES) / MODEL_FILE)
    if found is not None:
        return _scores_in_words(*found)
    written = [] if ledger is None else ledger.lines()
    asked = [line for line in written if line["run"] in (run + SUMS, run + SCORES)]
    kept_back = [Reason[line["withheld"]] for line in asked if line["withheld"]]
    if kept_back:
        why = f"was asked, and our part did not leave: {kept_back[0].removeprefix(BY_RULE)}"
    elif method in (*BY_SUMS, *BY_FITS):
        why = "was not asked: the job needs benefit = true, our policy"
        why += f" {HELD_OUT.name if method in BY_SUMS else LEFT_OUT}, and every fold enough rows"
    else:
        why = f"cannot be asked of real sites for {method}"
    return [f"  Not known: it {why}. Compare with a model of our own rows."]


def _own_scores(path: Path) -> tuple[Floats, Floats, Floats] | None:
    """Sums of scores, their products, and rows by fold, as this site sent them."""
    try:
        kept = load_arrays(path, seal=True)
        totals, products, rows = (kept[f"own.{name}"] for name in ("totals", "products", "rows"))
    except (KeyError, *DAMAGE):
        return None
    return (totals, products, rows) if rows.sum() >= LEAST_ROWS else None


def _scores_in_words(totals: Floats, products: Floats, rows: Floats) -> list[str]:
    """Scores of the ways, and the gain of joining over staying alone with its interval.

    Training sets of folds overlap: the variance of the mean is widened (Nadeau, Bengio 2003).
    """
    n, folds = rows.sum(), int((rows > 0).sum())
    by_score, moments = totals.sum(axis=0) / n, products.sum(axis=0)[0]
    log = by_score[0]
    gain = log[1] - log[0]
    spread = (moments[1, 1] - 2.0 * moments[0, 1] + moments[0, 0]) / n - gain**2
    half = QUANTILE * np.sqrt(max(spread, 0.0) / n * (1.0 + folds / max(folds - 1.0, 1.0)))
    low, high = gain - half, gain + half
    verdict = "It helped us" if low > 0 else "It hurt us" if high < 0 else "Our rows cannot tell"
    lines = [
        f"  {verdict}: {int(n)} rows of ours were left out in turn and predicted without them.",
        f"  log density a row: {_by_way(log)};",
        f"  joining gains {gain:.3g} ({low:.3g} to {high:.3g}, about 95 %).",
    ]
    errors = [np.sqrt(-squared) for squared in by_score[1:]]
    return lines + [f"  root mean squared error: {_by_way(each)}." for each in errors]


def _by_way(values: Floats) -> str:
    return ", ".join(f"{way} {value:.4g}" for way, value in zip(WAYS, values))
