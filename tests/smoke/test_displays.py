"""Displays: a picture and its numbers, of everything that can be drawn."""

import warnings
from types import SimpleNamespace

import matplotlib
import numpy as np
import pytest

matplotlib.use("Agg")
from matplotlib import pyplot

from fedkin import FGPR, FMLR, ODCL, Federation, FedGrEM, MixedModel, Standardizer
from fedkin.displays import (
    BenefitDisplay,
    ChoiceDisplay,
    ClusterPathDisplay,
    ConvergenceDisplay,
    CurvesDisplay,
    ForestDisplay,
    SiteMapDisplay,
)


@pytest.fixture(scope="module")
def fits():
    rng = np.random.default_rng(0)
    sites = np.repeat([f"s{k}" for k in range(8)], 20)
    X = rng.normal(size=(160, 2))
    slope = np.where(np.arange(160) < 80, 2.0, -1.0)
    y = slope * X[:, 0] + X[:, 1] + 0.1 * rng.normal(size=160)
    data = Federation.from_groups(X, sites, y, ["age", "dose"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield {
            "kinds": FMLR(random_state=0, max_components=3).fit(data),
            "odcl": ODCL(random_state=0).fit(data),
            "convex": ODCL(clustering="convex", random_state=0).fit(data),
            "degrees": MixedModel().fit(data),
            "curves": FGPR(max_rounds=5).fit(X[:, :1], y, groups=sites),
            "groups": FedGrEM(2, random_state=0).fit(X, groups=sites),
            "scaler": Standardizer().fit(X, groups=sites),
        }
    pyplot.close("all")


@pytest.mark.parametrize(
    ("display", "name", "columns", "height"),
    [
        (ForestDisplay, "kinds", {"label", "group", "value"}, 4),
        (ForestDisplay, "odcl", {"label", "group", "value"}, 4),
        (ForestDisplay, "degrees", {"label", "value", "low", "high"}, 2),
        (SiteMapDisplay, "odcl", {"label", "x", "y", "group"}, 8),
        (SiteMapDisplay, "degrees", {"label", "x", "y"}, 8),
        (ChoiceDisplay, "kinds", {"number of kinds", "bic"}, 3),
        (ConvergenceDisplay, "curves", {"step", "value"}, None),
        (CurvesDisplay, "curves", {"site", "x", "mean", "low", "high"}, None),
        (ClusterPathDisplay, "convex", {"penalty", "n_clusters", "s0", "s7"}, None),
    ],
)
def test_a_display_has_a_picture_and_its_numbers(fits, display, name, columns, height):
    made = display.from_estimator(fits[name])
    assert columns <= set(made.frame)
    assert height is None or len(made.frame.rows()) == height
    drawn = [*made.ax_.lines, *made.ax_.collections]
    assert drawn and made.figure_ is made.ax_.figure
    _, ax = pyplot.subplots()
    assert made.plot(ax).ax_ is ax
    pyplot.close("all")


def test_the_forest_shows_the_coefficients(fits):
    frame = ForestDisplay.from_estimator(fits["kinds"]).frame
    shown = {(label, k): v for label, k, v, *_ in frame.rows()}
    for k in range(2):
        for j, label in enumerate(("age", "dose")):
            assert shown[label, k] == pytest.approx(fits["kinds"].coef_[k, j])
    pyplot.close("all")


def test_every_estimator_draws_what_it_has_or_says_that_it_has_nothing(fits):
    for name, model in fits.items():
        if name == "scaler":
            with pytest.raises(ValueError, match="nothing to draw"):
                model.plot()
        else:
            assert model.plot() is not None
    with pytest.raises(ValueError, match="no curves over one feature"):
        fits["kinds"].plot("curves")
    with pytest.raises(ValueError, match="kind must be one of"):
        fits["kinds"].plot("pie")
    pyplot.close("all")


def test_a_comparison_is_drawn_with_its_numbers():
    found = SimpleNamespace(
        sites=("a", "b"),
        gain=np.array([0.5, -0.1]),
        interval=np.array([[0.1, 0.9], [-0.4, 0.2]]),
        metric="log",
    )
    made = BenefitDisplay.from_benefit(found)
    assert made.frame.rows()[0] == ("a", 0.5, 0.1, 0.9)
    pyplot.close("all")


def test_numbers_with_and_without_departures_are_two_curves(fits):
    display = ChoiceDisplay.from_estimator(fits["kinds"])
    table, drawn = fits["kinds"].choice_, display.spec["series"]
    assert [one["label"] for one in drawn] == ["kinds alone", "with departures"]
    for one, way in zip(drawn, (False, True)):
        own = np.asarray(table["degrees"]) == way
        assert one["x"] == sorted(set(table["n_components"][own].tolist()))
        least = table["bic"][own & (table["n_components"] == 1)].min()
        assert one["y"][0] == pytest.approx(least, rel=1e-8)
    lines = display.ax_.get_lines()
    marked = [line for line in lines if line.get_markersize() == 9]
    assert len(marked) == 1 and marked[0].get_ydata()[0] == pytest.approx(min(drawn[0]["y"]))
