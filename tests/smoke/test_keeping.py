"""Every estimator of the registry is written and read again with the same predictions."""

import json
import warnings

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

import fedkin
from fedkin import FGPR, FMLR, ODCL, Federation, InProcess, LocalGP, MixedModel
from fedkin.keeping import ModelError
from fedkin.registry import ESTIMATORS

# What makes a fit quick, and the parameters without which there is none.
SMALL = {
    "FMLR": {"n_components": 2},
    "OracleAveraging": {"true_labels": [0, 0, 1, 1]},
    "ClusterOracle": {"true_labels": [0, 0, 1, 1]},
    "IFCA": {"max_rounds": 5},
    "FGPR": {"max_rounds": 5},
    "PooledGP": {"max_rounds": 5},
    "FedAvgPolynomial": {"degree": 2, "max_rounds": 5},
    "FedAvgNetwork": {"depth": 1, "max_rounds": 5},
    "FedGrEM": {"max_rounds": 5},
}
SMALL["Best"] = {"folds": 2}
NEW = "newcomer"


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(5)
    sites = rng.permutation(np.repeat(["a", "b", "c", "d", NEW], 16))
    X = rng.normal(size=(80, 2))
    slope = np.where(np.isin(sites, ["a", "b"]), 2.0, -1.0)
    return X, slope * X[:, 0] + X[:, 1] + 0.1 * rng.normal(size=80), sites


def made(name):
    family = getattr(fedkin, name)
    taken = {**SMALL.get(name, {}), "random_state": 0}
    return family(**{k: v for k, v in taken.items() if k in family._get_param_names()})


def answers(model, X, sites):
    """Whatever the model says of rows, known sites and new ones."""
    found = {}
    for name in ("predict", "predict_proba", "score_samples", "transform", "decision_function"):
        if hasattr(model, name) and not (name == "score_samples" and model._uses_target()):
            where = {} if name == "transform" else {"groups": sites}
            found[name] = getattr(model, name)(X, **where)
    if hasattr(model, "log_predictive_density"):
        found["std"] = model.predict(X, groups=sites, return_std=True)[1]
    return found


def same(one, other):
    assert one and one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_a_model_read_again_says_the_same_to_the_last_bit(name, rows, tmp_path):
    X, y, sites = rows
    old = sites != NEW
    model = made(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X[old], y[old] if model._uses_target() else None, groups=sites[old])
        if hasattr(model, "adapt") and name != "CoKriging":
            model.adapt(X[~old], y[~old] if model._uses_target() else None, groups=NEW)
    asked = old if name == "CoKriging" else np.full(len(X), True)
    place = model.save(tmp_path / "model")
    again = fedkin.load(place)
    assert type(again) is type(model)
    same(answers(model, X[asked], sites[asked]), answers(again, X[asked], sites[asked]))
    assert str(again.summary()) == str(model.summary())
    # Written again, it is still the same.
    third = fedkin.load(again.save(tmp_path / "again"))
    same(answers(model, X[asked], sites[asked]), answers(third, X[asked], sites[asked]))
    # No row of anybody is in what is shared.
    own = set(X[old].ravel()) | set(y[old])
    for array in np.load(place / "shared.npz").values():
        if array.dtype.kind == "f":
            assert not own & set(array.ravel().tolist()), name
    assert not own & set(map(float, json_numbers((place / "model.json").read_text())))


def json_numbers(text):
    def numbers(value):
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list):
            return [n for item in value for n in numbers(item)]
        return [value] if isinstance(value, float) else []

    return numbers(json.loads(text))


def test_without_the_sites_parts_every_site_is_a_new_one(rows, tmp_path):
    X, y, sites = rows
    model = FGPR(personalise="posterior", common=False).fit(X, y, groups=sites)
    shared = fedkin.load(model.save(tmp_path / "shared", sites=False))
    assert not (tmp_path / "shared" / "sites").exists()
    everywhere = shared.predict(X[:5], groups=sites[:5])
    elsewhere = model.predict(X[:5], groups=["elsewhere"] * 5)
    np.testing.assert_allclose(everywhere, elsewhere, rtol=1e-12)
    # A site with its own part is itself again, others are not.
    model.save(tmp_path / "at-a", sites=["a"])
    own = fedkin.load(tmp_path / "at-a")
    of_a, of_b = X[sites == "a"], X[sites == "b"]
    np.testing.assert_array_equal(own.predict(of_a, groups="a"), model.predict(of_a, groups="a"))
    np.testing.assert_allclose(own.predict(of_b, groups="b"), shared.predict(of_b), rtol=1e-12)
    # The prior of all and the site's own rows make the same curve.
    adapted = shared.adapt(of_a, y[sites == "a"], groups="a")
    np.testing.assert_allclose(adapted.predict(of_a, "a"), model.predict(of_a, "a"), rtol=1e-6)


def test_memories_that_stayed_at_sites_are_in_the_sites_files(rows, tmp_path):
    X, y, sites = rows
    model = FMLR(2, share="sums", random_state=0).fit(X, y, groups=sites)
    place = model.save(tmp_path / "model")
    with np.load(place / "shared.npz") as shared:
        assert "responsibilities" not in shared
    with np.load(place / "sites" / "a.npz") as own:
        assert "memory.responsibilities" in own
    some = fedkin.load(place, sites=["a", "d"])
    np.testing.assert_array_equal(some.predict(X, groups="d"), model.predict(X, groups="d"))
    np.testing.assert_array_equal(some.predict(X, groups="b"), model.predict(X, groups="nobody"))


def test_classes_kernels_formulas_and_engines_come_back(rows, tmp_path):
    pandas = pytest.importorskip("pandas")
    X, y, sites = rows
    words = np.where(y > 0, "up", "down")
    model = ODCL(2, loss="logistic", random_state=0, engine=InProcess()).fit(X, words, sites)
    again = fedkin.load(model.save(tmp_path / "classes"))
    assert again.predict(X, sites).tolist() == model.predict(X, sites).tolist()
    assert again.classes_.tolist() == ["down", "up"] and again.engine is None
    model = LocalGP(RBF([1.0, 2.0]) + WhiteKernel(0.1)).fit(X, y, groups=sites)
    again = fedkin.load(model.save(tmp_path / "kernel"))
    assert again.kernel == model.kernel
    same(answers(model, X, sites), answers(again, X, sites))
    table = pandas.DataFrame({"x": X[:, 0], "z": X[:, 1], "y": y, "site": sites})
    table["kind"] = np.where(X[:, 1] > 0, "one", "other")
    model = MixedModel(formula="y ~ scale(x) * kind + np.exp(z) + (1 | site)".replace("np.", ""))
    model.fit(table)
    again = fedkin.load(model.save(tmp_path / "formula"))
    np.testing.assert_array_equal(again.predict(table), model.predict(table))
    classes = MixedModel(family="multinomial").fit(X, words, groups=sites)
    again = fedkin.load(classes.save(tmp_path / "labels"))
    assert again.predict(X, sites).tolist() == classes.predict(X, sites).tolist()


def test_what_is_not_known_is_refused(rows, tmp_path):
    X, y, sites = rows
    model = FMLR(1).fit(X, y, groups=sites)
    place = model.save(tmp_path / "model")
    words = json.loads((place / "model.json").read_text())

    def refused(match, **changes):
        (place / "model.json").write_text(json.dumps({**words, **changes}))
        with pytest.raises(ModelError, match=match):
            fedkin.load(place)

    refused("not a model of fedkin", format="something else")
    refused("version 2", version=2)
    refused("no estimator 'Os'", estimator="Os")
    refused("no parameter colour", parameters={**words["parameters"], "colour": 1})
    refused("other entries", more=1)
    refused("no result 'dict'", run={**words["run"], "result": "dict"})
    refused("was changed", sha256="0")
    (place / "model.json").write_text(json.dumps(words))
    (place / "sites").mkdir()
    (place / "sites" / "a.npz").write_bytes(b"nonsense")
    with pytest.raises(ModelError, match=r"a\.npz cannot be read"):
        fedkin.load(place)
    with pytest.raises(ModelError, match="not a model"):
        fedkin.load(tmp_path)
    with pytest.raises(ValueError, match="is no model"):
        model.save(tmp_path)
    with pytest.raises(ValueError, match="no site 'z'"):
        model.save(tmp_path / "other", sites=["z"])


def test_a_model_may_be_written_over_but_nothing_else(rows, tmp_path):
    X, y, sites = rows
    data = Federation.from_groups(X, sites, y)
    FMLR(1).fit(data).save(tmp_path / "model")
    ODCL(1).fit(data).save(tmp_path / "model")
    assert type(fedkin.load(tmp_path / "model")).__name__ == "ODCL"


@pytest.mark.parametrize("target", ["number", "classes", "rows"])
def test_ways_and_weights_of_best_come_back(target, rows, tmp_path):
    X, y, sites = rows
    y = {"number": y, "classes": np.where(y > 0, "up", "down"), "rows": None}[target]
    more = {"n_components": 2} if target == "rows" else {}
    model = fedkin.Best(target=target, folds=2, random_state=0, **more)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, y, groups=sites)
    place = model.save(tmp_path / "best")
    again = fedkin.load(place)
    where = np.where(np.arange(len(X)) % 5 == 0, "a new site", sites.astype(object))
    assert again.predict(X, where).tolist() == model.predict(X, where).tolist()
    assert str(again.summary()) == str(model.summary())
    # Without the sites' parts nobody is predicted by a model of its own.
    shared = fedkin.load(place, sites=False)
    assert not shared._fits[0].serves(tuple(shared.client_names_)).any()
    assert len(shared.predict(X, where)) == len(X)


def test_best_predicts_a_shuffled_federation_in_the_order_of_its_table(rows):
    X, y, sites = rows
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = fedkin.Best(folds=2, random_state=0).fit(Federation.from_groups(X, sites, y))
    data = Federation.from_groups(X, sites, y)
    np.testing.assert_allclose(model.predict(data), model.predict(X, sites), rtol=1e-12)
    density = model.log_predictive_density(data)
    np.testing.assert_allclose(density, model.log_predictive_density(X, y, sites), rtol=1e-9)
    assert np.corrcoef(model.predict(data), y)[0, 1] > 0.9
