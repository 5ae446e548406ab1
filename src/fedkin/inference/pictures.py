"""Pictures of answers. matplotlib is imported when one is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedkin.arrays import Bools, Floats, Indices

# More sites than this get no name on the axis.
MOST_NAMED = 60


def new_axes(height: float, ax: Any = None) -> Any:
    """The axes given, or those of a new figure."""
    if ax is not None:
        return ax
    from matplotlib.figure import Figure

    return Figure(figsize=(7.0, height), layout="constrained").subplots()


def intervals_by_site(
    names: Sequence[str],
    values: Floats,
    colours: Sequence[str],
    margin: float,
    label: str,
    legend: Mapping[str, str],
    ax: Any = None,
) -> Any:
    """Estimates with intervals, (3, m): a line a site, sorted; the margin as a band around zero."""
    estimate, low, high = values
    order = np.argsort(np.nan_to_num(estimate, nan=-np.inf), kind="stable")
    axes = new_axes(1.2 + 0.18 * min(len(names), MOST_NAMED), ax)
    axes.axvspan(-margin, margin, color="0.93", zorder=0)
    axes.axvline(0.0, color="0.5", lw=0.8)
    for place, k in enumerate(order):
        axes.plot([low[k], high[k]], [place, place], color=colours[k], lw=1.5)
        axes.plot(estimate[k], place, "o", ms=4, color=colours[k])
    for word, colour in legend.items():
        axes.plot([], [], "o-", color=colour, label=word)
    axes.legend(loc="lower right", frameon=False)
    axes.set(xlabel=label)
    _name(axes, [names[k] for k in order])
    return axes


def scores_by_site(
    names: Sequence[str], score: Floats, odd: Bools, threshold: float, ax: Any = None
) -> Any:
    """Scores of sites, sorted, those beyond the threshold in another colour."""
    order = np.argsort(score, kind="stable")
    axes = new_axes(1.2 + 0.18 * min(len(names), MOST_NAMED), ax)
    place = np.arange(len(order))
    for which, colour in ((~odd, "#0072B2"), (odd, "#D55E00")):
        here = which[order]
        axes.plot(score[order][here], place[here], "o", ms=4, color=colour)
    axes.axvline(threshold, color="#D55E00", ls="--", lw=1)
    axes.axvline(0.0, color="0.5", lw=0.8)
    axes.set(xlabel="score (about standard normal for a site like the others)")
    _name(axes, [names[k] for k in order])
    return axes


def curve_over_numbers(
    numbers: Indices,
    values: Floats,
    plain: Bools,
    chosen: int,
    labels: tuple[str, str],
    ax: Any = None,
) -> Any:
    """A criterion over numbers of groups; what is not `plain` (by degrees) stands beside it."""
    axes = new_axes(4.0, ax)
    axes.plot(numbers[plain], values[plain], "o-", color="#0072B2", label="alike within groups")
    if (~plain).any():
        axes.plot(numbers[~plain], values[~plain], "D", color="#009E73", label="by degrees")
    axes.plot(numbers[chosen], values[chosen], "o", ms=11, mfc="none", mec="#D55E00")
    axes.set(xlabel=f"number of {labels[0]}", ylabel=labels[1], xticks=np.unique(numbers))
    axes.legend(frameon=False)
    return axes


def _name(axes: Any, names: Sequence[str]) -> None:
    """Names of sites on the axis, unless there are too many."""
    if len(names) <= MOST_NAMED:
        axes.set_yticks(range(len(names)), names, fontsize=7)
    else:
        axes.set(yticks=[], ylabel=f"{len(names)} sites")
