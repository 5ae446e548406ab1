"""The displays: each has `from_estimator`, `frame` and `plot`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

import numpy as np

from fedkin.displays import specs
from fedkin.tables import Table

# Okabe and Ito's colours, told apart by people who do not see all colours alike.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#7f6fd1", "#8a8a8a")
# Sites that are named beside their dots; more stand without names.
MOST_NAMED = 40


def _colour(group: Any) -> str:
    return COLOURS[-1] if group is None or group < 0 else COLOURS[int(group) % len(COLOURS)]


class Display(ABC):
    """A picture of a fit and its numbers.

    Attributes
    ----------
    spec : dict
        What is drawn.
    frame : Table
        The same as a table; `frame.to_pandas()` is a data frame.
    ax_ : matplotlib axes
        Where it was drawn, after `plot`.
    figure_ : matplotlib figure
        Its figure.
    """

    _what: ClassVar[str] = "picture"

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec

    @classmethod
    @abstractmethod
    def _maker(cls, model: Any) -> dict[str, Any] | None:
        """What is drawn of a fitted model; None where it has no such picture."""

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: Any = None, **options: Any) -> Self:
        """Draw a fitted estimator; returns the display."""
        spec = cls._maker(estimator)
        if spec is None:
            raise ValueError(f"{type(estimator).__name__} has no {cls._what} to draw")
        display = cls(spec)
        display.plot(ax, **options)
        return display

    @property
    def frame(self) -> Table:
        """The numbers of the picture."""
        items = self.spec["items"]
        names = list(dict.fromkeys(name for item in items for name in item))
        columns = {name: [item.get(name) for item in items] for name in names}
        return Table(columns, self.spec["title"])

    def plot(self, ax: Any = None) -> Self:
        """Draw; `ax` is where, None makes a figure."""
        self.ax_ = _axes(ax)
        self.figure_ = self.ax_.figure
        self._draw(self.ax_)
        self.ax_.set_title(self.spec["title"], fontsize="medium")
        return self

    @abstractmethod
    def _draw(self, ax: Any) -> None:
        """Draw on the axes."""


class _Dots(Display):
    """A number for every site, the largest at the top; made from answers, not from a fit."""

    @classmethod
    def _maker(cls, model: Any) -> dict[str, Any] | None:
        """Nothing: a fit alone has no such answer."""
        return None

    def _draw(self, ax: Any) -> None:
        items = sorted(self.spec["items"], key=lambda item: _number(item["value"]))
        place = np.arange(len(items))
        values = np.array([_number(item["value"]) for item in items])
        if items and items[0].get("low") is not None:
            low = [_number(item["low"]) for item in items]
            high = [_number(item["high"]) for item in items]
            ax.hlines(place, low, high, color=COLOURS[0], alpha=0.5)
        ax.plot(values, place, "o", ms=4, color=COLOURS[0])
        ax.axvline(0.0, color="0.5", ls=":", lw=1)
        if len(items) <= MOST_NAMED:
            ax.set_yticks(place, [item["label"] for item in items], fontsize="small")
        else:
            ax.set_yticks([])
        ax.set_xlabel(self.spec["xlabel"])


class BenefitDisplay(_Dots):
    """What joining gives each site, with intervals.

    Made from a `Benefit` (`fedkin.inference.benefit`) by `from_benefit`.
    """

    _what = "benefit"

    @classmethod
    def from_benefit(cls, found: Any, *, ax: Any = None) -> Self:
        """Draw what `fedkin.inference.benefit` found; returns the display."""
        interval = np.asarray(found.interval)
        items = [
            {"label": str(s), "value": float(g), "low": float(ends[0]), "high": float(ends[1])}
            for s, g, ends in zip(found.sites, np.asarray(found.gain), interval)
        ]
        spec = {
            "title": "What joining gives each site",
            "xlabel": f"gain ({found.metric}) over staying alone",
            "items": items,
        }
        return cls(spec).plot(ax)

    @classmethod
    def from_estimator(cls, estimator: Any, X=None, y=None, groups=None, *, ax=None, **options):
        """Compare by rows left out, and draw; `options` are those of `benefit`."""
        if not hasattr(estimator, "benefit"):
            raise ValueError(f"{type(estimator).__name__} cannot be compared in this version")
        return cls.from_benefit(estimator.benefit(X, y, groups, **options), ax=ax)


class OddSitesDisplay(_Dots):
    """How odd each site is, and the score beyond which one is odd.

    Made from an `OddSites` (`fedkin.inference.odd_sites`) by `from_odd_sites`.
    """

    _what = "odd sites"

    @classmethod
    def from_odd_sites(cls, found: Any, *, ax: Any = None) -> Self:
        """Draw what `fedkin.inference.odd_sites` found; returns the display."""
        table = found.table()
        known = np.isfinite(np.asarray(table["score"], dtype=float))
        items = [
            {"label": str(s), "value": float(v), "adjusted p": float(p), "odd": bool(o)}
            for s, v, p, o, k in zip(
                table["site"], table["score"], table["adjusted p"], table["odd"], known
            )
            if k
        ]
        spec = {
            "title": "How odd each site is",
            "xlabel": "score (about standard normal for a site like the others)",
            "threshold": found.threshold,
            "items": items,
        }
        return cls(spec).plot(ax)

    @classmethod
    def from_estimator(cls, estimator: Any, X=None, y=None, groups=None, *, ax=None, **options):
        """Judge the sites, and draw; `options` are those of `odd_sites`."""
        from fedkin.inference import odd_sites

        return cls.from_odd_sites(odd_sites(estimator, X, y, groups, **options), ax=ax)

    def _draw(self, ax: Any) -> None:
        super()._draw(ax)
        ax.axvline(self.spec["threshold"], color=COLOURS[1], ls="--", lw=1)


class ForestDisplay(Display):
    """Coefficients of every kind side by side, or the common ones with intervals.

    Examples
    --------
    >>> import numpy as np
    >>> from fedkin import MixedModel
    >>> from fedkin.displays import ForestDisplay
    >>> rng = np.random.default_rng(0)
    >>> X, sites = rng.normal(size=(90, 2)), np.repeat(["a", "b", "c"], 30)
    >>> y = X @ [1.0, 2.0] + rng.normal(size=90)
    >>> display = ForestDisplay.from_estimator(MixedModel().fit(X, y, groups=sites))
    >>> display.frame["label"]
    ['x1', 'x0']
    """

    _what = "coefficients"

    @classmethod
    def _maker(cls, model: Any) -> dict[str, Any] | None:
        return specs.forest(model, {})

    def _draw(self, ax: Any) -> None:
        items, groups = self.spec["items"], self.spec["groups"]
        labels = list(dict.fromkeys(item["label"] for item in items))
        for k, name in enumerate(groups):
            own = [item for item in items if item["group"] == k]
            offset = 0.7 * ((k + 0.5) / len(groups) - 0.5)
            place = [labels.index(item["label"]) + offset for item in own]
            if own and own[0].get("low") is not None:
                ends = ([i["low"] for i in own], [i["high"] for i in own])
                ax.hlines(place, *ends, color=_colour(k), alpha=0.5)
            marker = "osD^v"[k % 5]
            ax.plot([i["value"] for i in own], place, marker, color=_colour(k), ms=5, label=name)
        ax.axvline(0.0, color="0.5", ls=":", lw=1)
        ax.set_yticks(range(len(labels)), labels)
        ax.invert_yaxis()
        ax.set_xlabel("effect on the target")
        if len(groups) > 1:
            ax.legend(fontsize="small")


class SiteMapDisplay(Display):
    """Sites by their own coefficients: those near each other have like models."""

    _what = "map of sites"

    @classmethod
    def _maker(cls, model: Any) -> dict[str, Any] | None:
        return specs.site_map(model, {})

    def _draw(self, ax: Any) -> None:
        for group in sorted({item.get("group", 0) for item in self.spec["items"]}):
            own = [item for item in self.spec["items"] if item.get("group", 0) == group]
            name = f"kind {group}" if group >= 0 else "in no kind"
            x, y = [item["x"] for item in own], [item["y"] for item in own]
            ax.plot(x, y, "osD^v"[max(group, 0) % 5], color=_colour(group), ms=5, label=name)
        ax.set(xlabel=self.spec["xlabel"], ylabel=self.spec["ylabel"])
        if any("group" in item for item in self.spec["items"]):
            ax.legend(fontsize="small")


class _Line(Display):
    """A curve."""

    @property
    def frame(self) -> Table:
        """The points of the curve."""
        series = self.spec["series"][0]
        columns = {self.spec["xlabel"]: series["x"], series["name"]: series["y"]}
        return Table(columns, self.spec["title"])

    def _draw(self, ax: Any) -> None:
        for k, series in enumerate(self.spec["series"]):
            name, colour = series.get("label"), _colour(2 * k)
            ax.plot(series["x"], series["y"], "o-", ms=3, color=colour, label=name)
            chosen = [(x, y) for x, y in zip(series["x"], series["y"]) if x == self.spec["mark"]]
            for x, y in chosen if not k else ():
                ax.plot(x, y, "o", ms=9, color=COLOURS[1])
        if "label" in self.spec["series"][0]:
            ax.legend(fontsize="small")
        ax.set(xlabel=self.spec["xlabel"], ylabel=self.spec["ylabel"])


class ChoiceDisplay(_Line):
    """The curve by which a number (of kinds, groups, priors) was chosen."""

    _what = "choice of a number"

    @classmethod
    def _maker(cls, model: Any) -> dict[str, Any] | None:
        return specs.choice(model, {})

    @classmethod
    def from_how_many(cls, found: Any, *, ax: Any = None) -> Self:
        """Draw what `fedkin.inference.how_many` found; returns the display."""
        plain = ~np.asarray(found.columns["by degrees"], dtype=bool)
        series = {
            "name": found.criterion,
            "x": np.asarray(found.columns["number"])[plain].tolist(),
            "y": np.asarray(found.columns[found.criterion])[plain].tolist(),
        }
        spec = {
            "title": f"How many {found.words[1]}",
            "xlabel": f"number of {found.words[1]}",
            "ylabel": found.criterion,
            "series": [series],
            "mark": None if found.by_degrees else found.number,
        }
        return cls(spec).plot(ax)


class ConvergenceDisplay(_Line):
    """The search, step by step."""

    _what = "search of several steps"

    @classmethod
    def _maker(cls, model: Any) -> dict[str, Any] | None:
        return specs.convergence(model, {})


class CurvesDisplay(Display):
    """Curves of some sites with bands, for methods of curves with one feature."""

    _what = "curves over one feature"

    @classmethod
    def _maker(cls, model: Any) -> dict[str, Any] | None:
        return specs.curves(model, {})

    @property
    def frame(self) -> Table:
        """Curves one below the other."""
        columns: dict[str, list[Any]] = {"site": [], "x": [], "mean": [], "low": [], "high": []}
        for series in self.spec["series"]:
            columns["site"] += [series["name"]] * len(self.spec["x"])
            columns["x"] += self.spec["x"]
            for name in ("mean", "low", "high"):
                columns[name] += series[name]
        return Table(columns, self.spec["title"])

    def _draw(self, ax: Any) -> None:
        for k, series in enumerate(self.spec["series"]):
            new = series["name"] == "a new site"
            colour = "0.4" if new else _colour(k)
            ax.plot(self.spec["x"], series["mean"], color=colour, lw=1.5, label=series["name"])
            ax.fill_between(
                self.spec["x"], series["low"], series["high"], color=colour, alpha=0.12, lw=0
            )
        ax.set(xlabel=self.spec["xlabel"], ylabel=self.spec["ylabel"])
        ax.legend(fontsize="x-small", ncols=2)


class ClusterPathDisplay(Display):
    """How sites merge into kinds as the penalty grows (convex clustering)."""

    _what = "path of convex clustering"

    @classmethod
    def _maker(cls, model: Any) -> dict[str, Any] | None:
        path = getattr(model, "path_", None)
        if not path or "labels" not in path:
            return None
        return {
            "title": "How sites merge into kinds",
            "penalties": np.asarray(path["penalties"]).tolist(),
            "n_clusters": np.asarray(path["n_clusters"]).tolist(),
            "labels": np.asarray(path["labels"]),
            "sites": [str(name) for name in model.client_names_],
            "penalty": model.penalty_,
        }

    @property
    def frame(self) -> Table:
        """The kind of every site at every penalty."""
        columns: dict[str, Any] = {"penalty": self.spec["penalties"]}
        columns["n_clusters"] = self.spec["n_clusters"]
        columns |= {name: self.spec["labels"][:, k] for k, name in enumerate(self.spec["sites"])}
        return Table(columns, self.spec["title"])

    def _draw(self, ax: Any) -> None:
        place = np.arange(len(self.spec["penalties"]))
        ax.step(place, self.spec["n_clusters"], where="mid", color=COLOURS[0])
        shown = np.unique(np.linspace(0, len(place) - 1, min(6, len(place))).astype(int))
        ax.set_xticks(shown, [f"{self.spec['penalties'][k]:.2g}" for k in shown])
        if self.spec["penalty"] is not None:
            near = int(np.argmin(np.abs(np.array(self.spec["penalties"]) - self.spec["penalty"])))
            ax.axvline(near, color=COLOURS[1], ls="--", lw=1)
        ax.set(xlabel="penalty", ylabel="kinds")


KINDS: dict[str, type[Display]] = {
    "forest": ForestDisplay,
    "curves": CurvesDisplay,
    "sites": SiteMapDisplay,
    "choice": ChoiceDisplay,
    "path": ClusterPathDisplay,
    "convergence": ConvergenceDisplay,
}


def draw(estimator: Any, kind: str | None = None, ax: Any = None) -> Display:
    """Draw a fitted estimator: the kind asked for, or the most telling one it has."""
    if kind is not None:
        if kind not in KINDS:
            listed = ", ".join(map(repr, KINDS))
            raise ValueError(f"kind must be one of {listed}, not {kind!r}")
        return KINDS[kind].from_estimator(estimator, ax=ax)
    for display in KINDS.values():
        if display._maker(estimator) is not None:
            return display.from_estimator(estimator, ax=ax)
    raise ValueError(f"{type(estimator).__name__} has nothing to draw")


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


def _axes(ax: Any) -> Any:
    if ax is not None:
        return ax
    from matplotlib import pyplot

    _, made = pyplot.subplots(layout="constrained")
    return made
