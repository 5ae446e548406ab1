import ast
import subprocess
import sys
from pathlib import Path

import fedkin.clustering


def test_importing_the_room_does_not_import_scikit_learn():
    code = "import sys, fedkin.clustering; sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_room_imports_nothing_of_fedkin_but_itself_arrays_threads_and_ties():
    for file in Path(fedkin.clustering.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert all(
                not name.startswith("fedkin")
                or name.startswith("fedkin.clustering")
                or name in ("fedkin.arrays", "fedkin.threads", "fedkin.ties")
                for name in names
            ), file.name


def test_every_public_name_has_a_docstring():
    for name in fedkin.clustering.__all__:
        assert getattr(fedkin.clustering, name).__doc__
