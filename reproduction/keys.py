"""What determines a replication: the package fedkin, and the code its function can reach here.

A kept replication is worth as much as the code that made it, and no more. So its name holds a
digest of the package and of what `one` reaches in this folder: the function, and the functions,
constants and imports it names, over all of them again. Claims, protocols and figures are not
reached: they can be reworded, and every replication is still there. Docstrings and comments do not
count; another version of Python may write the same code down differently, and then it is run again.
"""

from __future__ import annotations

import ast
import copy
import functools
import hashlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import fedkin

HERE = Path(__file__).parent


@functools.cache
def package() -> str:
    """A digest of fedkin's code: a change anywhere may be a change of the rows."""
    root = Path(fedkin.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        tree = _Undocumented().visit(ast.parse(path.read_text(encoding="utf-8")))
        told = path.relative_to(root).as_posix() + "\0" + ast.dump(tree)
        digest.update(told.encode() + b"\0")
    return digest.hexdigest()


@functools.cache
def replication(one: Callable[..., Any]) -> str:
    """A digest of a replication's function and of everything in its module and here it reaches."""
    source = inspect.getsourcefile(one)
    assert source is not None and one.__qualname__ == one.__name__, f"{one} is not in a module"
    found = reached(Name(Path(source), one.__name__))
    told = sorted(f"{path.stem}.{name}\0{code}" for (path, name), code in found.items())
    return hashlib.sha256("\0".join(told).encode()).hexdigest()


def code(one: Callable[..., Any]) -> str:
    """Both together, short."""
    return hashlib.sha256((package() + replication(one)).encode()).hexdigest()[:16]


class Name(NamedTuple):
    """A name at the top of a file."""

    file: Path
    name: str


def reached(first: Name) -> dict[Name, str]:
    """The code of a name, and of all names it needs."""
    found: dict[Name, str] = {}
    waiting = [first]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        nodes = _top(name.file).get(name.name, ())
        found[name] = "\0".join(written(node) for node in nodes)
        for node in nodes:
            waiting += [other for other in _named(node, name.file) if other not in found]
    return found


def written(node: ast.AST) -> str:
    """The code of a node without docstrings, comments and lay-out."""
    return ast.dump(_Undocumented().visit(copy.deepcopy(node)))


class _Undocumented(ast.NodeTransformer):
    def visit(self, node: ast.AST) -> Any:
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and _is_text(body[0]):
            node.body = body[1:] or [ast.Pass()]  # type: ignore[attr-defined]
        return self.generic_visit(node)


def _is_text(node: ast.AST) -> bool:
    value = getattr(node, "value", None)
    return isinstance(node, ast.Expr) and isinstance(getattr(value, "value", None), str)


@functools.cache
def _top(file: Path) -> dict[str, list[ast.stmt]]:
    """The statements at the top of a file by the names they bind or alter."""
    found: dict[str, list[ast.stmt]] = {}
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        for name in _binds(node):
            found.setdefault(name, []).append(_only(name, node))
    return found


def _only(name: str, node: ast.stmt) -> ast.stmt:
    """Of an import of many names, the import of this one."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        node = copy.copy(node)
        node.names = [alias for alias in node.names if _bound(alias) == name]
    return node


def _bound(alias: ast.alias) -> str:
    return alias.asname or alias.name.split(".")[0]


def _binds(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from map(_bound, node.names)
    elif isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            # `TABLE["key"] = ...` alters TABLE.
            yield from (part.id for part in ast.walk(target) if isinstance(part, ast.Name))
    elif isinstance(node, (ast.If, ast.For, ast.With, ast.Try)):
        for part in ast.walk(node):
            if isinstance(part, ast.stmt) and part is not node:
                yield from _binds(part)


def _named(node: ast.stmt, file: Path) -> Iterator[Name]:
    """Names of the same file, and of files here, that a statement needs."""
    for part in ast.walk(node):
        if isinstance(part, ast.ImportFrom) and part.module and part.level == 0:
            for alias in part.names:
                yield from _imported(part.module, alias.name)
        elif isinstance(part, ast.Name) and part.id in _top(file):
            yield Name(file, part.id)


def _imported(module: str, name: str) -> Iterator[Name]:
    """What `from module import name` reaches here: a name of a file, or all names of one."""
    package, *inside = module.split(".")
    if package != HERE.name:
        return
    whole = HERE.joinpath(*inside, f"{name}.py")
    if whole.is_file():
        yield from (Name(whole, each) for each in _top(whole))
        return
    file = HERE.joinpath(*inside).with_suffix(".py") if inside else HERE / "__init__.py"
    if file.is_file():
        yield Name(file, name)
