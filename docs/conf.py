"""How the documentation is made: `make docs`, without network, and a warning is an error."""

import inspect
import os
import sys
from importlib import import_module
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import fedkin  # noqa: E402
from fedkin.registry import ALGORITHMS, ESTIMATORS  # noqa: E402

project = "fedkin"
author = "The fedkin developers"
release = version = fedkin.__version__
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "formulas",
    "numpydoc",
    "myst_parser",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "studies", "gallery/**/*.md5", "gallery/**/*.py", "pictures/*.py"]
html_math_renderer = "drawn"
myst_enable_extensions = ["dollarmath", "deflist", "colon_fence"]
myst_heading_anchors = 3
highlight_language = "none"
# Pages of the repository that are not pages here (ARCHITECTURE.md, rows of studies).
suppress_warnings = ["myst.xref_missing", "config.cache"]

autosummary_generate = True
autodoc_member_order = "bysource"
autodoc_default_options = {"inherited-members": "BaseEstimator"}
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
numpydoc_xref_param_type = False

sphinx_gallery_conf = {
    "examples_dirs": str(HERE.parent / "examples" / "gallery"),
    "gallery_dirs": "gallery",
    "filename_pattern": "/plot_",
    "download_all_examples": False,
    "show_memory": False,
    "remove_config_comments": True,
    "abort_on_example_error": True,
    "min_reported_time": 10_000,
    "backreferences_dir": None,
}

html_theme = "pydata_sphinx_theme"
html_title = "fedkin"
html_theme_options = {
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "header_links_before_dropdown": 4,
    "secondary_sidebar_items": ["page-toc"],
}
html_show_sourcelink = False
html_copy_source = False
# Pages that stand alone have no neighbours to list beside them.
html_sidebars = {page: [] for page in ("start", "which", "report", "command", "checks", "glossary")}


def _write(path: Path, text: str) -> None:
    """Write if it differs, so that unchanged pages are not made again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def _algorithm_texts() -> None:
    """What every algorithm's file says of its paper, our words and where we differ."""
    for name, (module, _) in ALGORITHMS.items():
        text = inspect.cleandoc(import_module(module).__doc__ or "")
        _write(HERE / "_build" / "words" / f"{name}.md", text + "\n")


def _api_page() -> None:
    """A list of all there is, made from the registry."""
    groups = {
        "Estimators": [("fedkin", name) for name in ESTIMATORS],
        "Data": [("fedkin", "Federation"), ("fedkin.levels", "Encoding")],
        "Models as files": [("fedkin", "load")],
        "Cross-validation": [
            ("fedkin.model_selection", "cross_val_score"),
            ("fedkin.model_selection", "RowsWithinSites"),
        ],
        "Pictures": [
            ("fedkin.displays", name) for name in import_module("fedkin.displays").__all__
        ],
        "Inference": [
            ("fedkin.inference", name)
            for name in getattr(import_module("fedkin.inference"), "__all__", ())
            if inspect.isfunction(getattr(import_module("fedkin.inference"), name, None))
        ],
        "Engines": [("fedkin", "InProcess"), ("fedkin", "Rules")],
        "Watching": [
            ("fedkin.engines.observers", "Observer"),
            ("fedkin.engines.tracking", "TensorBoard"),
            ("fedkin.engines.tracking", "MLflow"),
        ],
    }
    lines = ["# API", ""]
    for title, names in groups.items():
        if not names:
            continue
        lines += [f"## {title}", "", "```{eval-rst}", ".. autosummary::", "   :toctree: generated"]
        lines += ["   :nosignatures:", ""]
        lines += [f"   {module}.{name}" for module, name in names]
        lines += ["```", ""]
    _write(HERE / "api.md", "\n".join(lines))


_algorithm_texts()
_api_page()


def _skip(app, what, name, obj, skip, options):
    """Methods that come from scikit-learn are described there."""
    foreign = str(getattr(obj, "__module__", "")).startswith("sklearn")
    routed = name.startswith("set_") and name.endswith("_request")
    return True if foreign or routed or name == "set_output" else skip


def setup(app):
    """Leave out what others document."""
    app.connect("autodoc-skip-member", _skip)
