"""A method's settings as options of the command, and back: made from its Settings, not by hand."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

# Settings that an option cannot hold, or that have an option of another name.
LEFT_OUT = {"engine", "random_state"}
COUNTS = ("n_components", "n_clusters", "n_priors")
NOTHING = {"none", "null", "auto-none"}


def constraints(family: Any) -> dict[str, Any]:
    """What every setting of an estimator may be."""
    settings = getattr(family, "_settings", None)
    if settings is None:
        return {}
    return {f.name: f.metadata["constraint"] for f in dataclasses.fields(settings)}


def parameters_of(family: Any) -> dict[str, Any]:
    """Parameters of an estimator and their defaults."""
    own = inspect.signature(family.__init__).parameters
    return {name: p.default for name, p in own.items() if name != "self"}


def settings_parameters(family: Any, taken: set[str]) -> list[inspect.Parameter]:
    """An option for every parameter of the estimator, as typer reads them from a signature."""
    rules, words = constraints(family), parameter_words(family.__doc__ or "")
    made, short = [], "-k"
    for name, default in parameters_of(family).items():
        if name in LEFT_OUT:
            continue
        flags = [_flag(name, taken)]
        if name.startswith("n_") and name[2:] not in taken | set(rules):
            flags.append(f"--{name[2:].replace('_', '-')}")
        if name in COUNTS and short:
            flags.append(short)
            short = ""
        kind, text = words.get(name, ("", ""))
        text = f"{text} {_default(default)}".strip()
        if type(rules.get(name)).__name__ == "Flag":
            option: Any = typer.Option(f"{flags[0]}/--no-{flags[0][2:]}", help=text)
            annotation: Any = Annotated[bool | None, option]
        else:
            option = typer.Option(*flags, help=text, metavar=_metavar(kind))
            annotation = Annotated[str | None, option]
        made.append(
            inspect.Parameter(
                f"set_{name}", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
            )
        )
    return made


def _flag(name: str, taken: set[str]) -> str:
    return f"--{'set-' if name in taken else ''}{name.replace('_', '-')}"


def _metavar(kind: str) -> str:
    """The type as the docstring has it, short enough for a column."""
    short = kind.replace('"', "").strip("{}").replace(", ", "|")
    return short if 0 < len(short) <= 34 and "of shape" not in short else "VALUE"


def _default(default: Any) -> str:
    return f"(default: {str(default).lower() if default in (None, True, False) else default})"


def parameter_words(doc: str) -> dict[str, tuple[str, str]]:
    """Type and first sentence of every parameter in a docstring, as numpydoc has them."""
    match = re.search(r"^Parameters\n-+\n(.*?)(?=^\w[^\n]*\n-{3,}\n|\Z)", doc, re.M | re.S)
    found: dict[str, tuple[str, str]] = {}
    if match is None:
        return found
    for entry in re.finditer(r"^(\w[\w, ]*) : ([^\n]*)\n((?:    [^\n]*\n?|\n)*)", match[1], re.M):
        text = " ".join(entry[3].split())
        sentence = re.split(r"(?<=[.;:]) ", text, maxsplit=1)[0].rstrip(";:")
        for name in entry[1].split(", "):
            found[name] = (entry[2], sentence)
    return found


def value_of(name: str, text: Any, rule: Any) -> Any:
    """What somebody wrote for a setting, as a value; whether it may be, the settings say."""
    if not isinstance(text, str):
        return text
    plain = text.strip()
    kind = type(rule).__name__
    if kind == "OneOf":
        for choice in rule.choices:
            if str(choice).lower() == plain.lower():
                return choice
        return _number_or_text(plain)
    if kind == "Start":
        return _array(name, plain) if _looks_like_numbers(plain) else plain
    if kind in ("Whole", "Number", "Flag"):
        return _number_or_text(plain)
    if plain.startswith(("{", "[")):
        return _from_json(name, plain)
    if "," in plain:
        return [_number_or_text(part.strip()) for part in plain.split(",") if part.strip()]
    return _number_or_text(plain)


def _number_or_text(text: str) -> Any:
    low = text.lower()
    if low in NOTHING:
        return None
    if low in ("true", "yes", "false", "no"):
        return low in ("true", "yes")
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _looks_like_numbers(text: str) -> bool:
    return text.startswith("[") or text.endswith((".npy", ".csv"))


def _array(name: str, text: str) -> Any:
    import numpy as np

    if text.startswith("["):
        return np.array(_from_json(name, text), dtype=np.float64)
    if not Path(text).is_file():
        raise ValueError(f"--{name}: there is no file {text}")
    if text.endswith(".npy"):
        return np.load(text, allow_pickle=False)
    return np.loadtxt(text, delimiter=",", ndmin=2)


def _from_json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"--{name.replace('_', '-')}: {text!r} is not JSON: {error}") from None


# ------------------------------------------------------------------ configuration


def read_toml(path: Path) -> dict[str, Any]:
    """A configuration: the names of the options, and a table [settings]."""
    import tomllib

    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: {error}") from None


def toml_text(content: Mapping[str, Any]) -> str:
    """A configuration as TOML; what is None is left out, or is "none" among settings."""
    lines = [f"{k} = {_toml(v)}" for k, v in content.items() if not isinstance(v, Mapping)]
    for name, table in content.items():
        if isinstance(table, Mapping):
            lines += ["", f"[{name}]", *(f"{k} = {_toml(v)}" for k, v in table.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if hasattr(value, "tolist"):
        return _toml(value.tolist())
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return json.dumps(str(value))
