"""Which sites are odd, and how many groups there are, by every method."""

import json
import warnings
from dataclasses import dataclass, replace

import matplotlib
import numpy as np
import pytest
from scipy import stats

matplotlib.use("Agg")

from fedkin import (
    FGPR,
    FMLR,
    IFCA,
    ODCL,
    Federation,
    FedGrEM,
    InProcess,
    LocalERM,
    MixedModel,
    NaiveAveraging,
    OracleAveraging,
    Standardizer,
)
from fedkin.datasets import (
    contaminate_sites,
    make_gaussian_mixtures,
    make_gaussian_sites,
    make_logistic_groups,
    make_regression_groups,
    make_regression_mixtures,
    make_sparse_regressions,
)
from fedkin.displays import ChoiceDisplay, OddSitesDisplay
from fedkin.estimators.counts import account, degrees_beside
from fedkin.federation import FederationError
from fedkin.inference import HowMany, how_many, odd_sites

COEF = [[2.0, 0.0, 1.0], [-1.0, 1.0, 0.0]]


def by_degrees(m=15, n=25, seed=0, shifted=None):
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(m), n)
    X = rng.normal(size=(m * n, 2))
    own = np.array([1.0, 2.0, 0.0]) + 0.7 * rng.normal(size=(m, 3))
    y = (X * own[owner, :2]).sum(axis=1) + own[owner, 2] + rng.normal(size=m * n)
    if shifted is not None:
        y = np.where(owner == shifted, y + 12.0 + 5.0 * X[:, 0], y)
    return X, y, owner


def kinds(seed=0):
    return make_sparse_regressions(
        60, 24, ((1.0, 2.0), (4.0, 5.0)), n_features=4, n_active=3, random_state=seed
    )


# ------------------------------------------------------------------ odd sites


def test_the_odd_site_is_named_with_its_reason():
    X, y, owner = by_degrees(shifted=4)
    found = odd_sites(MixedModel(), X, y, owner)
    assert found.names == ["4"]
    assert found.table()["site"][0] == "4" and found.table()["why"][0] == "apart"
    assert "1 of 15 site is odd" in found.sentence and "'4' lies apart" in found.sentence
    assert found.influence.argmax() == found.sites.index("4")
    assert np.isfinite(found.score).all()


def spoilt_kinds():
    groups = contaminate_sites(make_regression_groups(30, 15, COEF, random_state=0), 0.1, "noise")
    return FMLR(2, robust=True, random_state=0), groups.federation, groups.labels < 0


def spoilt_clusters():
    data = kinds().federation
    bad = np.arange(24) == 5
    return ODCL(2, random_state=0), replace(data, y=np.where(bad[data.owner], 9, data.y)), bad


def spoilt_mixture():
    drawn = make_gaussian_mixtures(8, 80, 0.3, 1, n_components=2, n_features=3, random_state=0)
    return FedGrEM(2, random_state=0), drawn.clients, drawn.outlier


def spoilt_regressions():
    drawn = make_regression_mixtures(8, 150, 0.0, 1, n_components=2, n_features=3, random_state=0)
    return FedGrEM(2, family="regression", random_state=0), drawn.clients, drawn.outlier


def spoilt_curves():
    data = make_gaussian_sites(12, 15, random_state=0).federation
    bad = np.arange(12) == 3
    data = replace(data, y=np.where(bad[data.owner], 30 * data.y, data.y))
    return FGPR(common=False, normalize_y="mean"), data, bad


def around_a_curve(m=14, n=12):
    """Sites whose curves share one, and depart from it by levels and slopes."""
    rng = np.random.default_rng(5)
    x, level, slope = rng.uniform(size=(m, n)), *0.3 * rng.normal(size=(2, m, 1))
    y = 2.0 * np.sin(5.0 * x) + level + slope * x + 0.1 * rng.normal(size=(m, n))
    return Federation.from_groups(x.reshape(-1, 1), np.repeat(np.arange(m), n), y.ravel())


def spoilt_common_curve():
    data = around_a_curve()
    bad = np.arange(14) == 3
    upside_down = np.where(bad[data.owner], -data.y, data.y)
    return FGPR(random_state=0), replace(data, y=upside_down), bad


def spoilt_classes():
    rng = np.random.default_rng(1)
    X, owner = rng.normal(size=(12 * 80, 2)), np.repeat(np.arange(12), 80)
    slope = np.where(owner == 7, -3.0, 1.0)
    y = (rng.random(960) < 1 / (1 + np.exp(-slope * X[:, 0]))).astype(float)
    data = Federation.from_groups(X, owner, y)
    bad = np.array([name == "7" for name in data.names])
    return MixedModel(family="binomial", random="intercept"), data, bad


@pytest.mark.parametrize(
    "made",
    [
        spoilt_kinds,
        spoilt_clusters,
        spoilt_mixture,
        spoilt_regressions,
        spoilt_curves,
        spoilt_common_curve,
        spoilt_classes,
    ],
)
def test_every_method_tells_odd_sites(made):
    model, data, bad = made()
    found = odd_sites(model, data)
    assert set(found.names) == {name for name, odd in zip(data.names, bad) if odd}


@pytest.mark.parametrize("adjust", ["holm", "bh"])
def test_a_clean_federation_has_none(adjust):
    X, y, owner = by_degrees(seed=3)
    found = odd_sites(MixedModel(), X, y, owner, adjust=adjust)
    assert found.names == [] and found.sentence.startswith("No site is odd")


def test_one_step_is_the_refit_where_what_is_shared_is_a_mean():
    data = kinds().federation
    told = odd_sites(ODCL(2, aggregate="mean", random_state=0), data).leave_one_out(["1", 2, 3])
    assert np.asarray(told["one step"]) == pytest.approx(told["fitted anew"], rel=1e-6)


@pytest.mark.parametrize(
    "model",
    [
        MixedModel(),
        FMLR(2, degrees=False, site_noise="common", random_state=0),
        IFCA(2, init=kinds().coef, random_state=0),
        ODCL(2, random_state=0),
        NaiveAveraging(),
        OracleAveraging(true_labels=kinds().labels),
    ],
)
def test_one_step_is_near_the_refit(model):
    data = kinds().federation
    told = odd_sites(model, data).leave_one_out(list(data.names[:8]))
    both = np.array([told["one step"], told["fitted anew"]])
    assert np.corrcoef(both)[0, 1] > 0.95
    assert both[0] == pytest.approx(both[1], rel=0.2)


def test_curves_move_as_one_step_says():
    data = make_gaussian_sites(15, 20, random_state=3).federation
    told = odd_sites(FGPR(common=False), data).leave_one_out(
        ["site-1", "site-2", "site-3", "site-8"]
    )
    assert np.corrcoef(told["one step"], told["fitted anew"])[0, 1] > 0.95


def test_a_common_curve_moves_as_one_step_says():
    model, data, bad = spoilt_common_curve()
    found = odd_sites(model, data)
    odd = data.names[int(bad.argmax())]
    others = [name for name in data.names if name != odd][:4]
    told = found.leave_one_out([odd, *others])
    one, anew = np.asarray(told["one step"]), np.asarray(told["fitted anew"])
    assert one.argmax() == anew.argmax() == 0
    assert np.corrcoef(one, anew)[0, 1] > 0.95


def test_the_least_usual_site_is_the_first_of_the_table_where_all_are_usual():
    found = odd_sites(FGPR(common=True, random_state=0), around_a_curve())
    assert found.names == []
    assert f"{found.table()['site'][0]!r}, is what chance gives" in found.sentence


def test_groups_without_a_site_are_matched_and_a_site_the_fit_hears_has_a_say():
    """Groups are numbered by their first coordinate, which tells them hardly apart here.

    A noisy site is odd, but its groups lie where the others' do: FedGrEM does not set them aside.
    """
    rng = np.random.default_rng(4)
    m, n = 8, 60
    owner, label = np.repeat(np.arange(m), n), np.tile(np.arange(n) % 3, m)
    own = np.array([[0.0, -6.0], [0.0, 0.0], [0.0, 6.0]]) + 0.3 * rng.normal(size=(m, 3, 2))
    noise = np.where(owner == 5, 1.7, 1.0)[:, None]
    X = own[owner, label] + noise * rng.normal(size=(m * n, 2))
    found = odd_sites(FedGrEM(3, random_state=0), X, groups=owner)
    orders = [found._without({str(k)}, True)._result.centers[:, 1].argmax() for k in range(m)]
    assert len(set(orders)) > 1 and found.names == ["5"]
    told = found.leave_one_out()
    both = np.array([told["one step"], told["fitted anew"]])
    assert both[0] == pytest.approx(both[1], rel=0.35)


def test_dropping_fits_again_without_the_site():
    X, y, owner = by_degrees(shifted=4)
    found = odd_sites(MixedModel(), X, y, owner)
    rest = owner != 4
    straight = MixedModel().fit(X[rest], y[rest], groups=owner[rest])
    assert found.drop().coef_ == pytest.approx(straight.coef_, rel=1e-8)
    assert found.drop(4).coef_ == pytest.approx(straight.coef_, rel=1e-8)
    assert list(found.drop(0, "1").client_names_[:2]) == ["2", "3"]
    with pytest.raises(ValueError, match="there is no site 'x'"):
        found.drop("x")
    with pytest.raises(ValueError, match="no site would be left"):
        found.drop(*found.sites)


def test_the_order_of_sites_does_not_matter():
    X, y, owner = by_degrees(shifted=4)
    back = np.argsort(-owner, kind="stable")
    a, b = (
        odd_sites(MixedModel(), X, y, owner),
        odd_sites(MixedModel(), X[back], y[back], owner[back]),
    )
    places = [b.sites.index(name) for name in a.sites]
    assert a.score == pytest.approx(b.score[places], rel=1e-6)
    assert a.influence == pytest.approx(b.influence[places], rel=1e-6)


def test_few_sites_and_empty_ones_are_not_judged():
    X, y, owner = by_degrees()
    for m in (1, 2):
        rows = owner < m
        found = odd_sites(MixedModel(), X[rows], y[rows], owner[rows])
        assert np.isnan(found.pvalue).all() and not found.odd.any()
        assert "none can be called odd" in found.sentence
    names = ["a", "b", "c", "d", "e"]
    parts = {name: (X[owner == k], y[owner == k]) for k, name in enumerate(names)}
    parts["none"] = (X[:0], y[:0])
    found = odd_sites(MixedModel(), Federation.from_clients(parts))
    place = found.sites.index("none")
    assert np.isnan(found.pvalue[place]) and np.isfinite(np.delete(found.pvalue, place)).all()
    assert np.isnan(found.influence[place])
    assert "none" in str(found)


def test_two_classes_are_sent_to_the_family_that_tells():
    model, data, bad = spoilt_classes()
    words = np.where(data.y == 1, "well", "ill")
    with pytest.raises(ValueError, match="with two classes take"):
        odd_sites(MixedModel(family="multinomial"), data.X, words, data.groups)
    found = odd_sites(model, data.X, words, data.groups)
    assert found.names == [name for name, odd in zip(data.names, bad) if odd]


def test_bad_questions_are_refused():
    X, y, owner = by_degrees()
    X[3, 0] = np.nan
    with pytest.raises(FederationError, match="site '0'"):
        odd_sites(MixedModel(), X, y, owner)
    with pytest.raises(ValueError, match="level"):
        odd_sites(MixedModel(), *by_degrees(), level=2.0)
    with pytest.raises(ValueError, match="adjust"):
        odd_sites(MixedModel(), *by_degrees(), adjust="none")
    with pytest.raises(ValueError, match="needs data"):
        odd_sites(MixedModel())
    with pytest.raises(ValueError, match="groups must name"):
        odd_sites(MixedModel(), *by_degrees()[:2])
    with pytest.raises(ValueError, match="does not tell"):
        odd_sites(Standardizer(), *by_degrees())
    with pytest.raises(ValueError, match="shares nothing"):
        odd_sites(LocalERM(), *by_degrees())


@dataclass(frozen=True)
class Sites:
    """An engine whose sites have data of their own."""

    data: Federation

    def run(self, algorithm, settings, federation, seed=0):
        assert federation is None
        return InProcess().run(algorithm, settings, self.data, seed)


@pytest.mark.parametrize("model", [MixedModel(), FMLR(1, random_state=0)])
def test_at_real_sites_sums_tell_the_same(model):
    X, y, owner = by_degrees(shifted=4)
    data = Federation.from_groups(X, owner, y)
    here = odd_sites(model, data)
    there = odd_sites(model.set_params(engine=Sites(data)))
    assert there.score == pytest.approx(here.score, rel=1e-6)
    assert there.names == here.names
    with pytest.raises(ValueError, match="at the sites"):
        there.drop()


def test_odd_sites_are_drawn_with_their_numbers():
    found = odd_sites(MixedModel(), *by_degrees(shifted=4))
    display = OddSitesDisplay.from_odd_sites(found)
    assert display.frame["label"][0] == "4" and display.frame["odd"][0]
    assert display.ax_.get_xlabel().startswith("score")
    assert found.plot().get_xlabel().startswith("score")


# ------------------------------------------------------------------ how many


@pytest.mark.parametrize("number", [1, 2])
def test_kinds_are_counted(number):
    data = make_regression_groups(30, 15, COEF[:number], random_state=1).federation
    found = how_many(FMLR(random_state=0), data, numbers=[2, 3], folds=0, resamples=0)
    assert (found.number, found.by_degrees) == (number, False)
    assert found.columns["what"][0] == "one kind" and "by degrees" in found.columns["what"]
    assert found.estimator.fit(data).n_components_ == number
    bic = found.table()["bic"][found.columns["what"].index("2 kinds")]
    alone = FMLR(2, degrees=False, random_state=0).fit(data)
    assert bic == pytest.approx(alone.bic_)
    assert (np.asarray(found.columns["icl"]) >= np.asarray(found.columns["bic"]) - 1e-6).all()


def counted(chosen, best, stability=0.5):
    """What is said when BIC has chosen one row of the table and rows left out another."""
    score = np.where(np.arange(4) == best, 1.0, 0.0)
    columns = {
        "what": ["one kind", "2 kinds", "3 kinds", "by degrees"],
        "number": np.array([1, 2, 3, 1]),
        "by degrees": np.array([False, False, False, True]),
        "bic": np.where(np.arange(4) == chosen, 0.0, 10.0),
        "icl": np.where(np.arange(4) == chosen, 0.0, 10.0),
        "left-out score": score,
        "error of the difference": np.full(4, 0.1),
        "stability": np.full(4, stability),
    }
    number, degrees = int(columns["number"][chosen]), bool(columns["by degrees"][chosen])
    return HowMany("it", number, degrees, "so many", None, ("kind", "kinds"), columns, chosen)


def test_what_rows_left_out_would_rather_have_is_said_as_it_is():
    assert "differ by degrees." in counted(chosen=1, best=3).reason
    assert "more may help than there are" in counted(chosen=1, best=2).reason
    assert "fewer may do" in counted(chosen=2, best=1).reason
    assert "Rows left out agree" in counted(chosen=2, best=2).reason


def test_kinds_that_other_sites_would_not_have_found_are_no_negative_share():
    assert "50% of it stays" in counted(chosen=1, best=1).reason
    assert "nothing of it stays" in counted(chosen=1, best=1, stability=-0.25).reason


@pytest.mark.parametrize("model", [FMLR(random_state=0), ODCL(random_state=0)])
def test_sites_that_differ_by_degrees_are_said_to(model):
    found = how_many(model, *by_degrees(30, 15), numbers=[2], resamples=1)
    assert found.by_degrees and found.number == 1
    assert found.answer == "one kind: sites differ by degrees"
    assert "Rows left out agree" in found.reason
    assert np.isfinite(found.columns["stability"][1])


def test_clusters_groups_and_priors_are_counted():
    data = kinds().federation
    assert how_many(ODCL(random_state=0), data, numbers=[2, 3], folds=0, resamples=0).number == 2
    ifca = how_many(IFCA(2, random_state=0), data, numbers=[2], folds=0, resamples=1)
    assert ifca.columns["what"] == ["one kind", "2 kinds", "by degrees"]
    mixture = make_gaussian_mixtures(6, 80, 0.3, 0, n_components=2, n_features=3, random_state=0)
    groups = how_many(FedGrEM(2, random_state=0), mixture.clients, numbers=[2, 3], resamples=1)
    assert groups.number == 2 and groups.columns["stability"][2] > 0.9
    curves = make_gaussian_sites(12, 15, random_state=0).federation
    priors = how_many(FGPR(random_state=0), curves, numbers=[2], folds=0, resamples=0)
    assert priors.number == 1 and priors.criterion == "icl"


def test_two_classes_are_counted():
    data = make_logistic_groups(200, 20, random_state=0).federation
    found = how_many(ODCL(loss="logistic", random_state=0), data, numbers=[4], folds=0, resamples=0)
    assert found.number == 4 and np.isfinite(found.columns["bic"]).all()


def test_one_group_by_degrees_has_the_likelihood_of_random_levels():
    """Rows of a site have covariance I + variance between sites, in every column."""
    rng = np.random.default_rng(0)
    m, n = 8, 30
    X = rng.normal(size=(m, n, 2)) + 0.8 * rng.normal(size=(m, 1, 2))
    data = Federation.from_groups(X.reshape(-1, 2), np.repeat(np.arange(m), n))
    model = FedGrEM(1, random_state=0).fit(data)
    _, apart = degrees_beside(model, data)
    covariance = np.eye(n) + model.between_variance_[0]
    law = stats.multivariate_normal(np.zeros(n), covariance)
    whole = sum(law.logpdf(X[..., j] - model.centers_[0, j]).sum() for j in range(2))
    assert apart.loglik == pytest.approx(whole, abs=1.0)


def test_one_cluster_has_the_likelihood_of_one_regression():
    data = kinds().federation
    found = account(ODCL(1, random_state=0).fit(data), data)
    design = np.column_stack([data.X, np.ones(len(data.X))])
    residual = data.y - design @ np.linalg.lstsq(design, data.y, rcond=None)[0]
    law = stats.norm(0, np.sqrt(np.mean(residual**2)))
    assert found.loglik == pytest.approx(law.logpdf(residual).sum(), rel=1e-9)


def test_one_site_has_one_kind_and_bad_numbers_are_refused():
    X, y, owner = by_degrees()
    rows = owner == 0
    found = how_many(FMLR(random_state=0), X[rows], y[rows], owner[rows], folds=0, resamples=0)
    assert found.number == 1 and not found.by_degrees
    with pytest.raises(ValueError, match="room for 15"):
        how_many(FMLR(), X, y, owner, numbers=[40])
    with pytest.raises(ValueError, match="at least 1"):
        how_many(FMLR(), X, y, owner, numbers=[0])
    with pytest.raises(ValueError, match="no number of groups"):
        how_many(MixedModel(), X, y, owner)


def test_the_choice_is_drawn():
    data = make_regression_groups(20, 15, COEF, random_state=1).federation
    found = how_many(FMLR(random_state=0), data, numbers=[2, 3], folds=0, resamples=0)
    assert found.plot().get_ylabel() == "bic"
    display = ChoiceDisplay.from_how_many(found)
    assert display.spec["mark"] == 2
    with warnings.catch_warnings(), pytest.raises(ValueError, match="criterion"):
        found.plot(criterion="taste")


# ------------------------------------------------------------------ the command


@pytest.fixture
def table(tmp_path):
    X, y, owner = by_degrees(12, 20, shifted=4)
    rows = [f"s{k},{a:.6f},{b:.6f},{c:.6f}" for k, (a, b), c in zip(owner, X, y)]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(["site,a,b,y", *rows]) + "\n")
    return str(path)


def test_the_command_names_odd_sites_and_needs_attention_then(table):
    from typer.testing import CliRunner

    from fedkin.cli import app

    run = CliRunner().invoke(app, ["odd", "mixed-model", table, "--json"])
    assert run.exit_code == 1 and json.loads(run.output)["odd"] == ["s4"]
    run = CliRunner().invoke(app, ["odd", "fmlr", table, "--set", "n_components=1"])
    assert "'s4'" in run.output


def test_the_command_counts(table):
    from typer.testing import CliRunner

    from fedkin.cli import app

    asked = ["count", "odcl", table, "--most", "2", "--folds", "0", "--resamples", "0", "--json"]
    run = CliRunner().invoke(app, asked)
    assert run.exit_code == 0 and len(json.loads(run.output)["tried"]) == 3
