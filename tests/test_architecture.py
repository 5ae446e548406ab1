"""The arrows of the design: a room imports only rooms that stand above it."""

import ast
import re
from pathlib import Path

TOP = Path(__file__).parents[1]
SOURCE = TOP / "src" / "fedkin"

ROOMS = (
    "__init__",
    "registry",
    "arrays",
    "settings",
    "names",
    "text_files",
    "frames",
    "levels",
    "randomness",
    "threads",
    "ties",
    "tables",
    "durable",
    "federation",
    "model_selection",
    "protocol",
    "models",
    "shrinkage",
    "alignment",
    "checks",
    "privacy",
    "clustering",
    "algorithms",
    "engines",
    "inference",
    "keeping",
    "displays",
    "estimators",
    "datasets",
    "report",
    "cli",
)
# Heavy imports that would make `import fedkin` and `fedkin --help` slow; and a test oracle.
LAZY = {"sklearn", "matplotlib", "pandas", "polars", "pyarrow", "nvflare", "rich", "jinja2"}
LAZY |= {"mlflow", "tensorboard", "tensorboardX", "torch"}
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


def test_a_room_imports_only_rooms_above_it():
    for path in files():
        own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        assert own in ROOMS, f"{own} is not in the list of rooms"
        for module in imports(path):
            # `from fedkin import __version__` names the package, not a room.
            if own != "__init__" and module.startswith("fedkin") and room_of(module) in ROOMS:
                below = ROOMS.index(room_of(module)) > ROOMS.index(own)
                assert not below, f"{path}: {own} imports {module}"


def test_imports_say_where_from():
    """The checks of the arrows read whole names: a relative import would slip past them."""
    for path in files():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        relative = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.level > 0]
        assert not relative, path


def test_heavy_libraries_are_imported_where_they_are_used():
    for path in files():
        place = str(path.relative_to(SOURCE))
        allowed = [what for where, what in MAY_LOAD.items() if place.startswith(where)]
        roots = {module.split(".")[0] for module in imports(path, top_level_only=True)}
        assert not (roots & LAZY) - set().union(*allowed), path


def test_nothing_that_runs_foreign_code_is_imported():
    for path in files():
        assert not {module.split(".")[0] for module in imports(path)} & FORBIDDEN, path
        text = path.read_text(encoding="utf-8")
        assert "allow_pickle=True" not in text, path
        calls = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call)]
        names = {c.func.id for c in calls if isinstance(c.func, ast.Name)}
        assert not names & {"eval", "exec"}, path


def test_the_package_answers_without_loading_heavy_libraries():
    import subprocess
    import sys

    code = "import sys, fedkin, fedkin.cli; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    assert not set(loaded) & (LAZY - {"rich"}) and "scipy" not in loaded and "numpy" not in loaded


def test_the_page_lists_the_rooms_in_their_order():
    page = (TOP / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = page.split("## Rooms")[1].split("##")[0]
    firsts = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert tuple(re.findall(r"`(\w+)`", " ".join(firsts))) == ROOMS[1:]


def test_every_decision_has_a_date_a_status_and_a_reason():
    folder = TOP / "docs" / "decisions"
    index = (folder / "README.md").read_text(encoding="utf-8")
    files = sorted(folder.glob("0*.md"))
    assert files and all(f"({path.name})" in index for path in files)
    for path in files:
        number = int(path.name[:4])
        records = path.read_text(encoding="utf-8").split("\n## ")[1:]
        for place, record in enumerate(records, start=1):
            assert record.startswith(f"{number}.{place} "), path
            assert re.search(r"^\*\d{4}-\d\d-\d\d; (stands|superseded)", record, flags=re.M)
            assert all(f"**{word}.**" in record for word in ("Context", "Decision", "Reason"))
