"""The page of a fit: complete, small, without rows; and alive in a real browser."""

import json
import re
import warnings
from dataclasses import replace

import numpy as np
import pytest
from tests.browser import WHY_NOT, Browser
from tests.smoke.test_keeping import made

from fedkin import FGPR, FMLR, ODCL, Federation, FedGrEM, MixedModel
from fedkin.displays.specs import forest
from fedkin.names import constant_at_some
from fedkin.registry import ESTIMATORS
from fedkin.report.answers import answer, answer_and_more
from fedkin.report.pages import report
from fedkin.tables import read_out


def sites_of_kinds(m, n, seed=0):
    rng = np.random.default_rng(seed)
    groups = np.repeat([f"clinic-{k + 1}" for k in range(m)], n)
    X = rng.normal(size=(m * n, 3))
    slopes = np.array([[2.0, 0.0, 1.0], [-1.0, 1.0, 0.0]])[np.repeat(np.arange(m) % 2, n)]
    y = (X * slopes).sum(axis=1) + 0.5 * rng.normal(size=m * n)
    return Federation.from_groups(X, groups, y, ["age", "bmi", "dose"], "recovery")


def record(data, **more):
    about = {"file": "/data/clinics.csv", "rows": len(data.X), "client": "clinic"}
    told = {"data": about, "settings": {"tol": 1e-6}, "seed": 0, "versions": {"fedkin": "0"}}
    return {**told, "checks": [], "warnings": [], "missing": [], **more}


def gains(data):
    gain = np.linspace(-0.2, 1.0, data.n_clients)
    return {
        "sites": list(data.names),
        "gain": gain.tolist(),
        "low": (gain - 0.3).tolist(),
        "high": (gain + 0.3).tolist(),
        "helped": int((gain > 0).sum()),
        "sentence": "Joining helps most sites.",
        "caption": "Rows left out.",
        "unit": "gain in log score",
    }


def content(page):
    return json.loads(re.search(r'id="content">(.*?)</script>', page, re.S)[1])


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_every_method_has_a_page_without_rows(name):
    rng = np.random.default_rng(1)
    X, sites = rng.normal(size=(64, 2)), np.repeat(["a", "b", "c", "d"], 16)
    y = X @ [1.0, -1.0] + 0.1 * rng.normal(size=64)
    data = Federation.from_groups(X, sites, y, target_name="y")
    model = made(name)
    if not model._uses_target():
        data = replace(data, y=None, target_name=None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(data)
    page = report(model, record(data))
    told = content(page)
    assert told["answer"] and told["cards"] and told["tables"]
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
    numbers = {float(n) for n in re.findall(r"-?\d+\.\d{6,}", page)}
    assert not numbers & (set(X.ravel()) | set(y))


def test_pages_stay_small():
    for m, most in ((50, 1e6), (1000, 5e6)):
        data = sites_of_kinds(m, 12)
        model = FMLR(2, random_state=0).fit(data)
        page = report(model, record(data, benefit=gains(data)))
        assert len(page.encode()) < most
        told = content(page)
        assert len(told["tables"][0]["rows"]) == m
        assert len(next(p for p in told["pictures"] if p["type"] == "dots")["items"]) == m


def test_words_of_strangers_stay_words():
    data = sites_of_kinds(4, 12)
    strange = replace(data, names=("</script><script>alert(1)</script>", *data.names[1:]))
    page = report(FMLR(2, random_state=0).fit(strange), record(strange, warnings=["<b>&</b>"]))
    assert "<script>alert" not in page and "<b>&</b>" not in page
    assert content(page)["tables"][0]["rows"][0][0].startswith("</script>")


def test_the_answer_comes_first_and_names_what_needs_a_look():
    data = sites_of_kinds(6, 20)
    model = FMLR(random_state=0).fit(data)
    page = report(model, record(data, warnings=["look here"]))
    assert page.index("are of 2 kinds") < page.index("Pictures")
    assert content(page)["checks"] == [{"kind": "fit", "text": "look here"}]
    degrees = report(MixedModel(random="intercept").fit(data))
    assert "Common to all 6 sites" in degrees


def test_what_the_answer_rests_on_stands_apart_from_it():
    """Ten sentences in one block are read by nobody."""
    data = sites_of_kinds(6, 20)
    model = FMLR(random_state=0).fit(data)
    told = content(report(model, record(data, benefit=gains(data))))
    assert "are of 2 kinds" in told["answer"] and "Joining helps" in told["answer"]
    assert "They differ most" in told["more"] and "no row left its site" in told["more"]
    assert answer(model, record(data)) == " ".join(answer_and_more(model, record(data)))


def test_numbers_and_single_sites_are_read_out_as_people_do():
    told = [read_out(value) for value in (1238.0, -0.0523, 1.0, 123456.0, 3.2e12)]
    assert told == ["1,240", "-0.0523", "1", "123,000", "3.2e+12"]
    assert read_out(183.0, 2) == "180"
    assert constant_at_some({"ses": ["b"]}) == ["column 'ses' is constant at site 'b'"]
    assert "constant at 2 sites, for example 'a', 'b'" in constant_at_some({"x": ["a", "b"]})[0]


# ------------------------------------------------------------------ in a browser

in_browser = pytest.mark.skipif(Browser.find() is None, reason=WHY_NOT)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    data = sites_of_kinds(50, 15)
    curves = Federation.from_groups(
        data.X[:120, :1], np.repeat([f"s{k}" for k in range(8)], 15), np.sin(data.X[:120, 0])
    )
    models = {
        "kinds": (FMLR(random_state=0, max_components=3), data),
        "odcl": (ODCL(2, random_state=0), data),
        "degrees": (MixedModel(), data),
        "curves": (FGPR(max_rounds=5), curves),
        "groups": (FedGrEM(2, random_state=0), replace(data, y=None, target_name=None)),
    }
    places = {}
    for name, (model, rows) in models.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(rows)
        more = {"benefit": gains(rows)} if name == "kinds" else {}
        places[name] = folder / f"{name}.html"
        places[name].write_text(report(model, record(rows, **more)), encoding="utf-8")
    return places


@pytest.fixture(scope="module")
def browser():
    with Browser() as opened:
        yield opened


@in_browser
@pytest.mark.parametrize("name", ["kinds", "odcl", "degrees", "curves", "groups"])
def test_a_browser_draws_every_picture_without_complaint(browser, pages, name):
    browser.open(pages[name])
    assert browser.errors == []
    wanted = len(content(pages[name].read_text())["pictures"])
    drawn = browser.js(
        "[...document.querySelectorAll('figure svg')].filter(s => s.children.length > 5 "
        "&& s.getBoundingClientRect().height > 40).length"
    )
    assert drawn == wanted > 0
    outside = browser.js(
        "[...document.querySelectorAll('figure svg [data-tip]')].filter(n => "
        "[...n.attributes].some(a => String(a.value).includes('NaN'))).length"
    )
    assert outside == 0
    assert browser.js("document.documentElement.scrollWidth <= innerWidth")


def first_column(browser, j=1):
    return browser.js(
        f"[...document.querySelectorAll('#site-table tbody tr')].map(r => r.children[{j}]"
        ".textContent)"
    )


@in_browser
def test_an_axis_comes_back_to_zero(browser, tmp_path):
    data = sites_of_kinds(6, 12)
    told = gains(data) | {"gain": [-0.2] * 6, "low": [-0.41] * 6, "high": [0.01] * 6}
    model = MixedModel().fit(data)
    (tmp_path / "page.html").write_text(report(model, record(data, benefit=told)), encoding="utf-8")
    browser.open(tmp_path / "page.html")
    texts = "document.querySelectorAll('figure[data-picture=dots] svg text')"
    words = browser.js(f"[...{texts}].map(t => t.textContent)")
    assert "-0.1" in words and "0" in words and not [word for word in words if "e-" in word]


@in_browser
def test_axes_of_counts_have_whole_numbers_and_small_probabilities_no_digits(browser, pages):
    browser.open(pages["kinds"])
    lines = "document.querySelectorAll('figure[data-picture=line]')[0].querySelectorAll('svg text')"
    words = browser.js(
        f"[...{lines}].filter(t => t.getAttribute('text-anchor') === 'middle')"
        ".map(t => t.textContent)"
    )
    assert words == ["1", "2", "3", "number of kinds"]
    cells = browser.js(
        "[...document.querySelectorAll('[data-table=estimates] td')].map(c => c.textContent)"
    )
    assert "< 0.001" in cells and not [cell for cell in cells if "e-" in cell]


@in_browser
def test_a_few_sites_are_named_in_the_picture_and_long_names_are_cut(browser, tmp_path):
    data = sites_of_kinds(6, 12)
    long = replace(data, names=(*data.names[:5], "x" * 90))
    (tmp_path / "page.html").write_text(
        report(MixedModel().fit(long), record(long)), encoding="utf-8"
    )
    browser.open(tmp_path / "page.html")
    texts = "document.querySelectorAll('figure[data-picture=scatter] svg text')"
    words = browser.js(f"[...{texts}].map(t => t.textContent)")
    assert set(data.names[:5]) <= set(words) and any(w.endswith("x…") for w in words)
    assert browser.errors == []


def test_the_answer_says_first_whether_joining_helps():
    data = sites_of_kinds(6, 12)
    model = MixedModel().fit(data)
    told = answer(model, record(data, benefit=gains(data)))
    first, second = told.index("Common to all"), told.index(gains(data)["sentence"])
    assert first < second < told.index("For this every site sent")
    own = answer(FMLR(6, random_state=0).fit(data))
    assert own.startswith("Each of the 6 sites follows a regression of its own")


@in_browser
def test_the_table_of_sites_sorts_and_searches(browser, pages):
    browser.open(pages["kinds"])
    click = "document.querySelectorAll('#site-table th button')[{}].click()"
    browser.js(click.format(0))
    assert first_column(browser, 0)[:3] == ["clinic-1", "clinic-2", "clinic-3"]
    browser.js(click.format(0))
    assert first_column(browser, 0)[0] == "clinic-50"
    names = browser.js(
        "[...document.querySelectorAll('#site-table th button')].map(b => b.textContent)"
    )
    j = names.index("gain")
    browser.js(click.format(j))
    found = [float(v) for v in first_column(browser, j)]
    assert found == sorted(found, reverse=True)
    sort = f"document.querySelectorAll('#site-table thead th')[{j}].getAttribute('aria-sort')"
    assert browser.js(sort) == "descending"
    browser.js(
        "(() => { const i = document.getElementById('search-sites'); i.value = 'clinic-4'; "
        "i.dispatchEvent(new Event('input')); })()"
    )
    assert len(first_column(browser)) == 11
    assert browser.js("document.querySelector('#site-table .count').textContent") == "11 of 50 rows"
    assert browser.errors == []


@in_browser
def test_numbers_and_dots_explain_themselves(browser, pages):
    browser.open(pages["kinds"])
    shown = (
        "document.getElementById('tip').hidden ? '' : document.getElementById('tip').textContent"
    )
    browser.hover("#site-table tbody td")
    assert "Rows of data that the site has." in browser.js(shown)
    browser.hover("figure[data-picture='dots'] circle")
    assert browser.js(shown).startswith("clinic-")
    browser.js("document.querySelector('.card').focus()")
    assert "better by joining" in browser.js(shown)


@in_browser
def test_curves_are_chosen_and_the_page_turns_dark(browser, pages):
    browser.open(pages["curves"])
    before = browser.js("document.querySelector('figure polyline').getAttribute('points')")
    browser.js(
        "(() => { const s = document.querySelector('figure select'); s.value = 3; "
        "s.dispatchEvent(new Event('change')); })()"
    )
    assert browser.js("document.querySelector('figure polyline').getAttribute('points')") != before
    paper = "getComputedStyle(document.body).backgroundColor"
    light = browser.js(paper)
    browser.js("document.getElementById('theme').click()")
    assert browser.js(paper) != light
    browser.scheme(True)
    browser.open(pages["curves"])
    assert browser.js(paper) != light
    browser.scheme(False)
    assert browser.errors == []


@in_browser
def test_a_phone_shows_everything_without_scrolling_sideways(pages):
    with Browser(390, 844, phone=True) as phone:
        for place in pages.values():
            phone.open(place)
            assert phone.js("document.documentElement.scrollWidth") <= 390
            assert phone.errors == []


def test_coefficients_of_classes_are_named_by_the_classes():
    rng = np.random.default_rng(0)
    X, sites = rng.normal(size=(200, 2)), np.repeat([f"s{k}" for k in range(5)], 40)
    words = np.array(["calm", "ill", "well"])[np.clip(np.round(X[:, 0] + 1), 0, 2).astype(int)]
    model = MixedModel(family="multinomial").fit(X, words, groups=sites)
    told = forest(model, {})
    assert told["groups"] == ["calm", "ill", "well"] and "classes" in told["title"]
    codes = MixedModel(family="multinomial").fit(
        X, np.searchsorted(model.classes_, words), groups=sites
    )
    record = {"data": {"encoding": {"classes": ["calm", "ill", "well"]}}}
    assert forest(codes, record)["groups"] == ["calm", "ill", "well"]


@in_browser
def test_marks_stand_out_from_dark_paper(pages):
    """A contrast of three to one is what marks need to be seen."""

    def light(rgb):
        part = [v / 255 for v in rgb]
        part = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in part]
        return 0.2126 * part[0] + 0.7152 * part[1] + 0.0722 * part[2]

    with Browser(dark=True) as opened:
        opened.open(pages["kinds"])
        style = "getComputedStyle(document.querySelector('svg line[opacity]'))"
        line, share = opened.js(f"{style}.stroke"), float(opened.js(f"{style}.opacity"))
        paper = opened.js("getComputedStyle(document.body).backgroundColor")
    line, paper = ([int(v) for v in re.findall(r"\d+", text)[:3]] for text in (line, paper))
    seen = [share * a + (1 - share) * b for a, b in zip(line, paper)]
    assert (light(seen) + 0.05) / (light(paper) + 0.05) > 3


@pytest.mark.parametrize("model", [MixedModel(), FMLR(), FGPR(common=False), FedGrEM(1)])
def test_one_site_is_spoken_of_as_one(model):
    data = sites_of_kinds(1, 30)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(data)
    told = answer(model) + model.summary().title
    assert "one site only" in told and "1 site," in told
    assert not re.search(r"\b1 (sites|priors|groups)", told)
