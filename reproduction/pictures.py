"""A picture that serves any study: every replication a dot, settings one below the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from reproduction.study import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def dots(
    results: Results, by: Sequence[str], measures: Sequence[str], log: Sequence[str] = ()
) -> Figure:
    """Dots of all rows and a bar at their mean for every combination of `by`, a panel a measure.

    Measures named in `log` have a logarithmic axis.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

    keys = list(dict.fromkeys(tuple(row.get(name) for name in by) for row in results.rows))
    figure = Figure(figsize=(4 + 3.2 * len(measures), 1.2 + 0.2 * len(keys)), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(measures), sharey=True))
    for axes, measure in zip(panels, measures):
        for place, key in enumerate(keys):
            values = results.where(**dict(zip(by, key))).column(measure)
            values = values[np.isfinite(values)]
            if len(values):
                axes.plot(values, np.full(len(values), place), "o", ms=3, alpha=0.4, color="C0")
                axes.plot(values.mean(), place, "k|", ms=10, mew=2)
        axes.set(xlabel=measure, xscale="log" if measure in log else "linear")
        if measure in log:
            axes.xaxis.set(
                major_locator=LogLocator(subs=(1, 2, 5)),
                major_formatter="{x:g}",
                minor_formatter=NullFormatter(),
            )
        axes.grid(axis="y", lw=0.3)
    words = [", ".join(str(part) for part in key if part is not None) for key in keys]
    panels[0].set_yticks(range(len(keys)), words, fontsize=8)
    panels[0].set_ylim(len(keys) - 0.5, -0.5)
    return figure
