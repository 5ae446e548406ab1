"""The arrows of the design: a room imports only rooms that stand above it."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "fedkin"

ROOMS = (
    "__init__",
    "names",
    "frames",
    "randomness",
    "threads",
    "tables",
    "federation",
    "protocol",
    "models",
    "shrinkage",
    "alignment",
    "privacy",
    "clustering",
    "algorithms",
    "engines",
    "inference",
    "estimators",
    "datasets",
    "report",
    "cli",
)
# Heavy imports that would make `import fedkin` and `fedkin --help` slow; and a test oracle.
LAZY = {"sklearn", "matplotlib", "pandas", "polars", "pyarrow", "nvflare", "rich", "jinja2"}
FORBIDDEN = {"pickle", "cloudpickle", "dill", "cvxpy", "marshal", "shelve"}
MAY_LOAD = {"estimators": {"sklearn"}, "engines/nvflare": {"nvflare"}}


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def files():
    return sorted(SOURCE.rglob("*.py"))


def imports(path: Path, top_level_only: bool = False):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = tree.body if top_level_only else ast.walk(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_a_room_imports_only_rooms_above_it(path):
    own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    assert own in ROOMS, f"{own} is not in the list of rooms"
    if own == "__init__":
        return
    for module in imports(path):
        if module.split(".")[0] == "fedkin":
            other = room_of(module)
            # `from fedkin import __version__` names the package, not a room.
            if other in ROOMS:
                assert ROOMS.index(other) <= ROOMS.index(own), f"{own} imports {module}"


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_say_where_from(path):
    """The checks of the arrows read whole names: a relative import would slip past them."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    relative = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.level > 0]
    assert not relative


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_heavy_libraries_are_imported_where_they_are_used(path):
    place = str(path.relative_to(SOURCE))
    allowed = set().union(*(what for where, what in MAY_LOAD.items() if place.startswith(where)))
    roots = {module.split(".")[0] for module in imports(path, top_level_only=True)}
    assert not (roots & LAZY) - allowed


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_nothing_that_runs_foreign_code_is_imported(path):
    assert not {module.split(".")[0] for module in imports(path)} & FORBIDDEN
    text = path.read_text(encoding="utf-8")
    assert "allow_pickle=True" not in text
    calls = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call)]
    assert not [c for c in calls if isinstance(c.func, ast.Name) and c.func.id in {"eval", "exec"}]


def test_the_package_answers_without_loading_heavy_libraries():
    import subprocess
    import sys

    code = "import sys, fedkin, fedkin.cli; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    assert not set(loaded) & (LAZY - {"rich"}) and "scipy" not in loaded and "numpy" not in loaded
