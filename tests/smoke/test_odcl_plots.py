"""Pictures show what the fit says."""

import numpy as np
import pytest

from fedkin import IFCA, ODCL, ClusterOracle, Federation, LocalERM
from fedkin.datasets import make_sparse_regressions, spoil_sites
from fedkin.datasets.odcl import APPENDIX_D2

GROUPS = spoil_sites(
    make_sparse_regressions(100, n_clients=40, intervals=APPENDIX_D2, random_state=0), 0.1, "wild"
)


@pytest.fixture(scope="module")
def pyplot():
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    yield pyplot
    pyplot.close("all")


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_the_map_shows_every_site_once_and_names_those_set_aside(pyplot, tmp_path):
    fitted = ODCL(robust=True, fit_intercept=False, random_state=0).fit(GROUPS.federation)
    axes = fitted.plot()
    drawn = [len(points.get_offsets()) for points in axes.collections]
    assert drawn == [*np.bincount(fitted.labels_[fitted.labels_ >= 0]), 4]
    assert texts(axes) == list(fitted.odd_sites_)
    assert len(axes.patches) == 4  # hulls
    axes.figure.savefig(tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 5000


def test_the_curve_marks_the_chosen_number(pyplot):
    fitted = ODCL(robust=True, fit_intercept=False, random_state=0).fit(GROUPS.federation)
    axes = fitted.plot("choice")
    curve, chosen = axes.lines
    np.testing.assert_array_equal(curve.get_ydata(), fitted.choice_["curve"])
    assert set(chosen.get_xdata()) == {4} and axes.get_ylabel() == "BIC"


def test_where_every_site_stays_alone_expected_errors_are_drawn(pyplot):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12, 20, 1))
    level = 10.0 * np.arange(12)[:, None]
    y = level + X[..., 0] + 0.1 * rng.normal(size=(12, 20))
    fitted = ODCL(random_state=0).fit(Federation.from_clients(list(zip(X, y))))
    axes = fitted.plot("choice")
    curve, _, chosen = axes.lines
    np.testing.assert_array_equal(curve.get_ydata(), fitted.choice_["expected error"])
    assert set(chosen.get_xdata()) == {12} and "the noise alone " in texts(axes)


def test_the_path_is_a_dendrogram_in_the_clusters_colours(pyplot):
    fitted = ODCL(clustering="convex", robust=True, fit_intercept=False, random_state=0)
    fitted.fit(GROUPS.federation)
    axes = fitted.plot("path")
    assert len(axes.get_xticklabels()) == 36
    assert axes.lines[-1].get_ydata()[0] == fitted.penalty_
    silhouettes = fitted.plot("choice")
    assert silhouettes.lines[0].get_ydata().max() == np.nanmax(fitted.choice_["curve"])


def test_a_given_axes_is_drawn_into(pyplot):
    _, axes = pyplot.subplots()
    fitted = ODCL(4, fit_intercept=False, random_state=0).fit(GROUPS.federation)
    assert fitted.plot("sites", ax=axes) is axes


def test_pictures_that_do_not_exist_say_why():
    fitted = ODCL(4, fit_intercept=False, random_state=0).fit(GROUPS.federation)
    with pytest.raises(ValueError, match="was given, not chosen"):
        fitted.plot("choice")
    with pytest.raises(ValueError, match="fit with clustering='convex'"):
        fitted.plot("path")
    with pytest.raises(ValueError, match="kind must be one of"):
        fitted.plot("pie")
    assert not any(hasattr(rival, "plot") for rival in (IFCA(), LocalERM(), ClusterOracle()))


def test_what_left_nothing_to_choose_is_told():
    data = GROUPS.federation
    with pytest.raises(ValueError, match="one site leaves nothing to choose"):
        ODCL().fit(*data.client(0)).plot("choice")
    at_a_penalty = ODCL(clustering="convex", penalty=0.1).fit(data)
    with pytest.raises(ValueError, match="the penalty decided the number of clusters"):
        at_a_penalty.plot("choice")
