"""The reconstruction battery: with the default rules no row is recovered; lifted, attacks work."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fedkin import FGPR, FMLR, ODCL, Federation, FedGrEM, InProcess, MixedModel, Standardizer
from fedkin.algorithms import algorithm as find_algorithm
from fedkin.engines.files import write_reply
from fedkin.engines.site import SiteHalf
from fedkin.models.least_squares import unpack
from fedkin.privacy import Ledger
from fedkin.privacy.disclosure import DEFAULT_RULES, DisclosureRules, Guard, examine, examine_all
from fedkin.privacy.disclosure.rules import in_words
from fedkin.protocol import Ask, Fault, Reason
from fedkin.protocol.gate import WITHHELD
from tests.deployment.test_site_half import case_of

FMLR_ALGORITHM = find_algorithm("fmlr")


def honest_site(seed, n=60, d=3):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, X @ np.arange(1.0, d + 1) + rng.normal(size=n)


def two_people(copies):
    X = np.array([[61.0, 27.5, 4.2], [74.0, 22.1, 5.9]])
    return np.tile(X, (copies, 1)), np.tile([130.0, 145.5], copies)


def rare_cell(n=500):
    rng = np.random.default_rng(1)
    X = np.column_stack([rng.normal(50, 10, (n, 2)), np.zeros(n)])
    X[17, 2] = 1.0
    return X, rng.normal(size=n)


def rare_half(n=500):
    """Two values that are no codes, one of them of two patients: neither stands out alone."""
    X, y = rare_cell(n)
    X[:, 2] = -1.0
    X[[17, 40], 2] = 1.0
    return X, y


def rare_pair(n=500):
    """Each column has many positives, but only one patient has both."""
    X, y = rare_cell(n)
    X[:, 1] = np.arange(n) % 2
    X[:, 2] = np.arange(n) % 4 == 0
    X[17, 2] = 1.0
    return X, y


def outlier(n=60):
    X, y = honest_site(5, n)
    X[3] *= 1e6
    return X, y


DANGEROUS = {
    "one row": lambda: (np.array([[61.0, 27.5, 4.2]]), np.array([130.0])),
    "two rows": lambda: two_people(1),
    "as many rows as columns": lambda: honest_site(2, n=3),
    "copies of two rows": lambda: two_people(6),
    "a rare level": rare_cell,
    "a rare one of two values": rare_half,
    "too many columns": lambda: honest_site(3, n=12),
    "a row that stands alone": outlier,
}
METHODS = {
    "FMLR": lambda engine: FMLR(2, random_state=0, engine=engine),
    "FMLR sums": lambda engine: FMLR(2, share="sums", random_state=0, engine=engine),
    "MixedModel": lambda engine: MixedModel(random="intercept", engine=engine),
    "ODCL": lambda engine: ODCL(1, random_state=0, engine=engine),
    "ODCL statistics": lambda engine: ODCL(1, aggregate="statistics", engine=engine),
    "FedGrEM": lambda engine: FedGrEM(2, random_state=0, max_rounds=5, engine=engine),
    "FGPR": lambda engine: FGPR(max_rounds=5, engine=engine),
    "Standardizer": lambda engine: Standardizer(engine=engine),
}
# Sums of single columns give nobody away for being many columns; they may leave then.
SUMS_MAY_LEAVE = {"too many columns", "a row that stands alone"}


def federation(danger):
    sites = {f"fine-{k}": honest_site(10 + k) for k in range(3)}
    return Federation.from_clients({**sites, "small": DANGEROUS[danger]()})


def who_sent(method, data, folder, disclosure, besides_sums=False):
    """Sites that sent anything; or anything that reveals more than sums of single columns."""
    engine = InProcess(ledger=folder, disclosure=disclosure)
    model = METHODS[method](engine).fit(data)
    harmless = ("nothing", "count", "sums") if besides_sums else ()
    sent = set()
    for line in Ledger(folder).lines():
        step = model._algorithm.step(line["step"])
        known = {**step.reply, **step.optional}
        if any(known[name].reveals not in harmless for name in line["fields"]):
            sent.update(line["sites"])
    return sent


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", METHODS)
def test_from_dangerous_data_nothing_leaves(method, tmp_path):
    for number, danger in enumerate(DANGEROUS):
        only_sums = danger in SUMS_MAY_LEAVE
        sent = who_sent(method, federation(danger), tmp_path / str(number), "enforce", only_sums)
        assert "small" not in sent, danger
        assert sent == {"fine-0", "fine-1", "fine-2"} or method == "Standardizer"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", METHODS)
def test_with_the_rules_lifted_it_does_leave(method, tmp_path):
    assert "small" in who_sent(method, federation("a rare level"), tmp_path, None)


# ------------------------------------------------------------------ the attacks


def half(X, y, folder, rules, run="run", algorithm="fmlr", **settings):
    known = find_algorithm(algorithm)
    chosen = known.settings(**settings).for_sites()
    client = Federation.from_clients({"a": (X, y)})
    return SiteHalf(known, chosen, client, 3, run, folder, disclosure=rules)


def sent_statistics(X, y, folder, rules, run="run"):
    """What FMLR's first question gets out of a site; None if it withholds."""
    answer = half(X, y, folder, rules, run).answer(1, Ask("statistics"), 0)
    return None if answer.fault is not None else answer.arrays["statistics"][0]


def gram_of(statistics):
    """Products of (x, 1, y): all of the site's Gram matrix, and the number of rows."""
    xx, xy, yy, n = unpack(statistics)
    whole = np.block([[xx, xy[:, None]], [xy[None], np.array([[yy]])]])
    return whole, int(n)


def read_one_row(statistics):
    """With one row, the products with the constant are the row."""
    gram, _ = gram_of(statistics)
    return np.delete(gram[-2], -2)


def read_two_rows(statistics):
    """Two people, however often each: mean and the one direction about it."""
    gram, n = gram_of(statistics)
    mean = np.delete(gram[-2], -2) / n
    scatter = np.delete(np.delete(gram, -2, 0), -2, 1) / n - np.outer(mean, mean)
    values, vectors = np.linalg.eigh(scatter)
    half_way = np.sqrt(values[-1]) * vectors[:, -1]
    return np.stack([mean - half_way, mean + half_way])


def read_rare_level(statistics, column):
    """The row of a 0/1 column with one positive holds that patient's values."""
    gram, _ = gram_of(statistics)
    return np.delete(gram[column], -2)


def read_by_difference(one, other):
    """Two fits that differ by one row differ by its products."""
    return np.delete(gram_of(other)[0][-2] - gram_of(one)[0][-2], -2)


def test_one_row_is_read(tmp_path):
    X, y = DANGEROUS["one row"]()
    found = read_one_row(sent_statistics(X, y, tmp_path / "lifted", None))
    np.testing.assert_allclose(found, [61.0, 27.5, 4.2, 130.0])
    assert sent_statistics(X, y, tmp_path / "kept", DEFAULT_RULES) is None


@pytest.mark.parametrize("copies", [1, 6])
def test_two_rows_are_read_however_often_they_are_there(copies, tmp_path):
    X, y = two_people(copies)
    found = read_two_rows(sent_statistics(X, y, tmp_path / "lifted", None))
    truth = np.column_stack([X, y])[:2]
    found = found[np.argsort(found[:, 0])]
    np.testing.assert_allclose(found, truth, rtol=1e-6)
    assert sent_statistics(X, y, tmp_path / "kept", DEFAULT_RULES) is None


def test_three_whole_ages_are_read_from_their_sums(tmp_path):
    ages = np.array([34.0, 61.0, 79.0])
    rng = np.random.default_rng(0)
    X, y = np.column_stack([ages, rng.normal(size=(3, 2))]), rng.normal(size=3)
    gram, n = gram_of(sent_statistics(X, y, tmp_path / "lifted", None))
    fitting = [
        three
        for three in itertools.combinations_with_replacement(range(121), n)
        if sum(three) == round(gram[0, -2]) and sum(a * a for a in three) == round(gram[0, 0])
    ]
    assert tuple(ages) in fitting and len(fitting) <= 3
    assert sent_statistics(X, y, tmp_path / "kept", DEFAULT_RULES) is None


def test_a_patient_with_a_rare_level_is_read_among_five_hundred(tmp_path):
    X, y = rare_cell()
    found = read_rare_level(sent_statistics(X, y, tmp_path / "lifted", None), 2)
    np.testing.assert_allclose(found, [*X[17], y[17]])
    assert sent_statistics(X, y, tmp_path / "kept", DEFAULT_RULES) is None


def test_who_knows_the_features_reads_every_target_of_a_site_with_few_rows(tmp_path):
    X, y = honest_site(4, n=3)
    gram, _ = gram_of(sent_statistics(X, y, tmp_path / "lifted", None))
    design = np.column_stack([X, np.ones(3)])
    found = np.linalg.lstsq(design.T, gram[:-1, -1], rcond=None)[0]
    np.testing.assert_allclose(found, y, atol=1e-8)
    assert sent_statistics(X, y, tmp_path / "kept", DEFAULT_RULES) is None


def test_two_fits_that_differ_by_a_row_are_not_both_answered(tmp_path):
    X, y = honest_site(6, n=80)
    lifted = [
        sent_statistics(X[:k], y[:k], tmp_path / "lifted", None, f"run-{k}") for k in (79, 80)
    ]
    np.testing.assert_allclose(read_by_difference(*lifted), [*X[79], y[79]], atol=1e-9)
    kept = tmp_path / "kept"
    assert sent_statistics(X[:79], y[:79], kept, DEFAULT_RULES, "run-79") is not None
    assert sent_statistics(X, y, kept, DEFAULT_RULES, "run-80") is None
    # The same rows once more tell nothing new; ten rows more are no single patient.
    assert sent_statistics(X[:79], y[:79], kept, DEFAULT_RULES, "again") is not None
    assert sent_statistics(X[:69], y[:69], kept, DEFAULT_RULES, "run-69") is not None


def test_another_column_does_not_hide_the_difference(tmp_path):
    X, y = honest_site(6, n=80)
    fewer = half(X[:79, :2], y[:79], tmp_path, DEFAULT_RULES, "two-columns")
    assert fewer.answer(1, Ask("statistics"), 0).fault is None
    more = half(X, y, tmp_path, DEFAULT_RULES, "three-columns")
    assert more.answer(1, Ask("statistics"), 0).fault == Fault(Reason.DIFFERENCE)


def test_what_is_kept_about_earlier_runs_holds_no_value(tmp_path):
    X, y = honest_site(6, n=80)
    sent_statistics(X, y, tmp_path, DEFAULT_RULES)
    (path,) = (tmp_path / "released").glob("*.npz")
    kept = np.concatenate([array.view(np.float64) for array in np.load(path).values()])
    assert not np.isin(kept, np.concatenate([X.ravel(), y])).any()


def test_other_methods_give_one_row_away_too():
    X, y = DANGEROUS["one row"]()
    alone = Federation.from_clients({"a": (X, y)})
    for name, step, field in (("standardizer", "locate", "centre"), ("fedgrem", "start", "")):
        known = find_algorithm(name)
        settings = known.settings() if name == "standardizer" else known.settings(n_components=1)
        from fedkin.randomness import KeyRing

        own = settings.for_sites()
        cache, keys = known.prepare(alone, own), KeyRing(alone.names, 0).at(1)
        answer = known.answer(Ask(step), alone, cache, own, None, keys)
        np.testing.assert_allclose(answer.arrays[field or "components"].ravel(), X[0])


# ------------------------------------------------------------------ the rules themselves


def test_honest_sites_are_not_withheld():
    for seed in range(5):
        look = examine(*honest_site(seed))
        assert look.n_distinct == 60 and look.smallest_cell == 60 and look.leverage < 0.6
    X, y = honest_site(0, n=200)
    X[:, 1] = np.arange(200) % 2
    assert examine(X, y).smallest_cell == 100


def test_a_look_at_all_sites_is_the_look_at_each():
    data = federation("copies of two rows")
    X = data.X.copy()
    X[:, 1] = np.arange(len(X)) % 3
    from dataclasses import replace

    for clients in (data, replace(data, X=X), replace(data, y=None)):
        for k, look in enumerate(examine_all(clients)):
            own = examine(*clients.client(k))
            assert (look.n_rows, look.n_distinct) == (own.n_rows, own.n_distinct)
            assert (look.smallest_cell, look.smallest_pair) == (
                own.smallest_cell,
                own.smallest_pair,
            ) or data.names[k] == "small"
            assert abs(look.leverage - own.leverage) < 1e-8 or data.names[k] == "small"


def test_a_rare_pair_counts_where_products_leave(tmp_path):
    look = examine(*rare_pair())
    assert look.smallest_cell >= 100 and look.smallest_pair == 1
    assert sent_statistics(*rare_pair(), tmp_path, DEFAULT_RULES) is None
    sums = half(*rare_pair(), tmp_path, DEFAULT_RULES, "sums", "standardizer")
    assert sums.answer(1, Ask("locate"), 0).fault is None


def test_rows_of_codes_only_may_be_alike():
    codes = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]] * 30)
    look = examine(codes, None)
    assert look.n_distinct == 120 and look.smallest_pair == 30


def test_a_rare_event_in_the_target_counts():
    X, _ = honest_site(0, n=300)
    assert examine(X, (np.arange(300) < 2).astype(float)).smallest_cell == 2


def test_every_refusal_by_rule_names_a_remedy_and_is_on_record(tmp_path):
    X, y = rare_cell()
    site = half(X, y, tmp_path, DEFAULT_RULES)
    fault = site.answer(1, Ask("statistics"), 0).fault
    assert fault == Fault(Reason.CELL, "statistics")
    assert "merge levels or drop the column" in str(fault)
    assert [line["withheld"] for line in site.ledger.lines()] == ["CELL"]
    assert all(
        "withheld" in reason or reason is Reason.FEW_ROWS or reason is Reason.POLICY
        for reason in WITHHELD
    )


def test_a_site_answers_so_many_questions_and_no_more(tmp_path):
    X, y = honest_site(0)
    rules = DisclosureRules(questions_per_step=3)
    asked = [Ask("residual", {"coef": np.full((1, 1, 4), k / 9)}) for k in range(9)]
    site = half(X, y, tmp_path, rules, share="sums")
    answers = [site.answer(k + 1, ask, 0).fault for k, ask in enumerate(asked[:3])]
    assert answers == [None] * 3
    assert site.answer(4, asked[2], 0).fault is None, "the same question once more"
    assert site.answer(5, asked[3], 0).fault == Fault(Reason.BUDGET)
    restarted = half(X, y, tmp_path, rules, share="sums")
    assert restarted.answer(6, asked[4], 0).fault == Fault(Reason.BUDGET)
    assert restarted.answer(7, Ask("target"), 0).fault is None


def test_reply_files_obey_the_rules(tmp_path):
    case = case_of("odcl")
    small = Federation.from_clients({"a": DANGEROUS["two rows"]()})
    path = tmp_path / "a.npz"
    with pytest.raises(ValueError, match="nothing was written: too few rows"):
        write_reply(path, case.algorithm, Ask("model"), small, case.chosen())
    assert not path.exists()
    write_reply(path, case.algorithm, Ask("model"), small, case.chosen(), disclosure=None)
    assert path.exists()


def test_unknown_rules_are_errors():
    with pytest.raises(ValueError, match="there is no disclosure rule nfilter_tabs"):
        DisclosureRules.from_mapping({"nfilter_tabs": 3})
    with pytest.raises(ValueError, match="nfilter_subset must be a whole number"):
        DisclosureRules(nfilter_subset=-1)


def test_the_summary_says_what_a_real_federation_would_withhold():
    data = federation("a rare level")
    model = FMLR(2, random_state=0).fit(data)
    told = "In a real federation 1 of 4 sites would withhold their replies under the default"
    foresight = model._run.would_withhold.__self__
    assert foresight.__getstate__()["_clients"] is None, "a fit does not travel with its rows"
    assert told in str(model.summary()) and "small: withheld by" in str(model.summary())
    silent = FMLR(2, random_state=0, engine=InProcess(disclosure=None)).fit(data)
    assert told not in str(silent.summary())
    np.testing.assert_array_equal(silent.coef_, model.coef_)
    with pytest.warns(UserWarning, match="1 of 4 sites are not part of the fit"):
        strict = FMLR(2, random_state=0, engine=InProcess(disclosure="enforce")).fit(data)
    assert set(strict.missing_sites_) == {"small"}


def test_every_field_says_what_it_reveals():
    """Rows that went into a number are declared: only what has none reveals nothing."""
    from fedkin.algorithms import names

    for name in names():
        for step in find_algorithm(name).steps.values():
            for field_name, field in {**step.reply, **step.optional}.items():
                if field.reveals == "nothing":
                    assert "number of" in field.meaning, (name, field_name)
                if "products" in field.meaning or "statistics" in field_name:
                    assert field.reveals == "products", (name, field_name)


def test_a_guard_without_history_judges_rows_only():
    client = Federation.from_clients({"a": honest_site(0)})
    schema = FMLR_ALGORITHM.step("statistics").reply
    assert Guard(DEFAULT_RULES, client).reply(schema, {}) is None


# ------------------------------------------------------------------ weights of rows


def weighted_statistics(X, y, weights, folder, rules, run):
    client = Federation.from_clients({"a": (X, y)})
    client = client if weights is None else client.with_weights(weights)
    chosen = FMLR_ALGORITHM.settings(weighted=weights is not None).for_sites()
    site = SiteHalf(FMLR_ALGORITHM, chosen, client, 3, run, folder, disclosure=rules)
    answer = site.answer(1, Ask("statistics"), 0)
    return answer.fault, None if answer.fault is not None else answer.arrays["statistics"][0]


def test_the_same_rows_leave_with_one_set_of_weights_only(tmp_path):
    """A column of ones but for one patient, taken as weights: the difference is that patient."""
    X, y = honest_site(6, n=80)
    weights = np.ones(80)
    weights[17] = 2.0
    sent = [
        weighted_statistics(X, y, given, tmp_path / "lifted", None, f"run-{k}")[1]
        for k, given in enumerate((None, weights))
    ]
    np.testing.assert_allclose(read_by_difference(*sent), [*X[17], y[17]], atol=1e-9)
    kept = tmp_path / "kept"
    faults = [
        weighted_statistics(X, y, given, kept, DEFAULT_RULES, f"run-{k}")[0]
        for k, given in enumerate((None, weights, None))
    ]
    assert faults == [None, Fault(Reason.DIFFERENCE), None]
    other = tmp_path / "weights first"
    faults = [
        weighted_statistics(X[:, :d], y, given, other, DEFAULT_RULES, f"run-{k}")[0]
        for k, (d, given) in enumerate([(3, weights), (3, weights), (2, None), (2, weights)])
    ]
    assert faults == [None, None, Fault(Reason.DIFFERENCE), None], "nor with fewer columns"


def test_a_site_reads_which_of_its_rules_kept_what_back(tmp_path):
    X, y = honest_site(3, 5)
    site = half(X, y, tmp_path, DEFAULT_RULES)
    fault = site.answer(1, Ask("statistics"), 0).fault
    assert str(fault).startswith("too few rows behind an entry in 'statistics'; ")
    line = site.ledger.lines()[0]
    assert line["withheld"] == "FEW_ROWS"
    assert line["story"] == "5 rows that differ; our rule nfilter_subset is 10"


def test_every_rule_tells_its_site_a_number():
    look = examine(*honest_site(3, 20))
    for reason, rule in (
        (Reason.CELL, "nfilter_tab is 3"),
        (Reason.PARAMETERS, "nfilter_glm is 0.33"),
        (Reason.LEVERAGE, "leverage is 0.9"),
        (Reason.DIFFERENCE, "nfilter_subset is 10"),
        (Reason.MISFIT, "misfit is 3"),
    ):
        assert in_words(DEFAULT_RULES, Fault(reason), look).endswith(f"our rule {rule}")
    assert in_words(DEFAULT_RULES, Fault(Reason.BUDGET), look) == ""
