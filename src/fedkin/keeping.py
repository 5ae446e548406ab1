"""Fitted models as files that outlive the process: npz and JSON, never pickle.

A model is a folder:

    model.json    what it is: estimator, parameters, sites, columns, what travelled
    shared.npz    what is shared: the server's result; no row of anybody
    sites/*.npz   one file a site with what is the site's own: what it kept to itself, rows where
                  predictions are made from them, what `adapt` learnt

Whoever gets the folder without `sites` has the shared model; a site needs its own file besides.
What is not known (another format, a newer version, an estimator or a setting that this version does
not have, a changed file) is refused, not guessed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import asdict, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from fedkin.arrays import Array, Arrays
from fedkin.durable import DAMAGE, load_arrays
from fedkin.federation import Federation
from fedkin.levels import Encoding
from fedkin.names import canonical_name, file_name
from fedkin.protocol import Result, Roster, Run, Traffic
from fedkin.protocol.runs import Refusal
from fedkin.registry import ESTIMATORS

FORMAT = "fedkin model"
VERSION = 1
WORDS, SHARED, SITES, MODELS = "model.json", "shared.npz", "sites", "models"
# In a site's file: what its memory, rows and adapted state begin with.
MEMORY, ROWS, ADAPTED, NEW_ROWS, OWN = "memory.", "rows.", "adapted", "new.", "own."


class ModelError(ValueError):
    """A folder is not a model that this version can read."""


def save(model: Any, path: str | Path, sites: bool | Collection[Any] = True) -> Path:
    """Write a fitted model as a folder; `sites` says whose own parts are written besides."""
    place = Path(path)
    if (
        place.exists()
        and not (place / WORDS).is_file()
        and (not place.is_dir() or any(place.iterdir()))
    ):
        raise ValueError(f"{place} is there and is no model; give the place of a new folder")
    place.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    try:
        _write(model, beside, sites)
        beside.chmod(0o755)
        if place.exists():
            shutil.rmtree(place)
        os.replace(beside, place)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return place


def load(path: str | Path, sites: bool | Collection[Any] = True) -> Any:
    """The fitted model in a folder, as `estimator.save` wrote it.

    Parameters
    ----------
    path : path
        The folder.
    sites : bool or list of names
        Whose own parts are read: of all sites that are in the folder, of none, or of these.

    Returns
    -------
    estimator
        Fitted, with the same predictions to the last bit. A site whose own part is not there is
        treated like one that was not in the fit.

    Examples
    --------
    >>> import tempfile
    >>> import fedkin
    >>> folder = tempfile.mkdtemp() + "/model"
    >>> model = fedkin.LocalERM().fit([[0.0], [1.0], [2.0]], [1.0, 3.0, 5.0], groups=["a"] * 3)
    >>> _ = model.save(folder)
    >>> fedkin.load(folder).predict([[10.0]], groups="a").round(6)
    array([21.])
    """
    place = Path(path)
    told = _words(place)
    shared = _shared(place, told)
    own = _own_parts(place, told, sites)
    model = _empty(told)
    if told["models"]:
        folder = place / MODELS
        parts = {name: load(folder / file_name(name), sites) for name in told["models"]}
        model._take_models(parts)
    return _restored(model, told, shared, own)


# ------------------------------------------------------------------ writing


def _write(model: Any, folder: Path, sites: bool | Collection[Any]) -> None:
    from fedkin import __version__

    run: Run | None = getattr(model, "_run", None)
    parts = model._kept_models()
    shared = _result_arrays(run.result) if run is not None else {}
    np.savez(folder / SHARED, **shared)  # type: ignore[arg-type]
    own = {} if sites is False else _parts_of_sites(model, run, sites)
    words = {
        "format": FORMAT,
        "version": VERSION,
        "fedkin": __version__,
        "estimator": type(model).__name__,
        "parameters": {
            name: encode(value, name)
            for name, value in model.get_params(deep=False).items()
            if name not in model._not_kept
        },
        "attributes": {
            name: encode(getattr(model, name), name)
            for name in model._kept_attributes
            if hasattr(model, name)
        },
        "words": encode(model._kept_words(), "words"),
        "run": None if run is None else _run_words(model, run),
        "sha256": hashlib.sha256((folder / SHARED).read_bytes()).hexdigest(),
        "models": sorted(parts),
    }
    (folder / WORDS).write_text(json.dumps(words, indent=1, allow_nan=False), encoding="utf-8")
    for name, part in parts.items():
        (folder / MODELS / file_name(name)).mkdir(parents=True)
        _write(part, folder / MODELS / file_name(name), sites)
    if own:
        (folder / SITES).mkdir()
    for name, arrays in own.items():
        np.savez(folder / SITES / f"{file_name(name)}.npz", name=np.array(name), **arrays)


def _run_words(model: Any, run: Run) -> dict[str, Any]:
    data: Federation | None = model._kept_rows()
    return {
        "result": type(run.result).__name__,
        "settings": {n: encode(v, n) for n, v in model._used.to_mapping().items()},
        "sites": list(run.roster.names),
        "traffic": asdict(run.traffic),
        "refusals": [refusal.to_json() for refusal in run.refusals],
        "dropped": list(run.dropped),
        "memories": sorted(run.memories) if run.memories is not None else None,
        "rows": None
        if data is None
        else {
            "features": list(data.feature_names),
            "target": data.target_name,
            "encoding": None if data.encoding is None else data.encoding.to_json(),
        },
    }


def _result_arrays(result: Result) -> dict[str, Array]:
    arrays = {name: np.asarray(array) for name, array in result.items()}
    odd = [name for name, array in arrays.items() if array.dtype.kind == "O"]
    if odd:
        raise TypeError(f"the result's {', '.join(odd)} are no arrays of numbers or text")
    return arrays


def _parts_of_sites(model: Any, run: Run | None, sites: bool | Collection[Any]) -> dict[str, Any]:
    """What is each site's own, by name."""
    own: dict[str, dict[str, Array]] = {}
    if run is not None:
        for k, name in enumerate(run.roster.names):
            memory = {f"{MEMORY}{n}": a[k] for n, a in (run.memories or {}).items()}
            own[name] = memory
        data = model._kept_rows()
        if data is not None:
            for k, name in enumerate(data.names):
                X, y = data.client(k)
                own[name] |= {f"{ROWS}X": X} | ({} if y is None else {f"{ROWS}y": y})
    for name, arrays in model._kept_at_sites().items():
        own.setdefault(name, {}).update({f"{OWN}{n}": np.asarray(a) for n, a in arrays.items()})
    if not model._adapts_by_rows:
        for name, learnt in getattr(model, "_adapted", {}).items():
            own.setdefault(name, {}).update(_learnt_arrays(learnt))
    for number, clients in enumerate(getattr(model, "_newcomers", ())):
        for k, name in enumerate(clients.names):
            X, y = clients.client(k)
            added = {f"{NEW_ROWS}X": X} | ({} if y is None else {f"{NEW_ROWS}y": y})
            added[f"{NEW_ROWS}call"] = np.array(number)
            own.setdefault(name, {}).update(added)
    if sites is True:
        return {name: arrays for name, arrays in own.items() if arrays}
    wanted = [canonical_name(name) for name in sites]  # type: ignore[union-attr]
    unknown = [name for name in wanted if name not in own]
    if unknown:
        raise ValueError(f"the model knows no site {unknown[0]!r}")
    return {name: own[name] for name in wanted if own[name]}


def _learnt_arrays(learnt: Any) -> dict[str, Array]:
    """What `adapt` learnt of a site, an array or several."""
    if not isinstance(learnt, tuple):
        return {ADAPTED: np.asarray(learnt)}
    return {f"{ADAPTED}.{k}": np.asarray(part) for k, part in enumerate(learnt)}


def _learnt(arrays: Mapping[str, Array]) -> Any:
    """The inverse of `_learnt_arrays`."""

    def plain(array: Array) -> Any:
        return array.item() if array.ndim == 0 else array

    if ADAPTED in arrays:
        return plain(arrays[ADAPTED])
    count = sum(key.startswith(f"{ADAPTED}.") for key in arrays)
    return tuple(plain(arrays[f"{ADAPTED}.{k}"]) for k in range(count))


# ------------------------------------------------------------------ reading


def _words(place: Path) -> dict[str, Any]:
    path = place / WORDS
    if not path.is_file():
        raise ModelError(f"{place} is not a model: there is no {WORDS} in it")
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from None
    if not isinstance(told, dict) or told.get("format") != FORMAT:
        raise ModelError(f"{path} is not a model of fedkin")
    if told.get("version") != VERSION:
        raise ModelError(
            f"{place} has version {told.get('version')} of the format, this fedkin reads "
            f"{VERSION}; it was written by fedkin {told.get('fedkin')}"
        )
    wanted = {"estimator", "parameters", "attributes", "words", "run", "sha256", "models"}
    known = wanted | {"format", "version", "fedkin"}
    if set(told) != known:
        raise ModelError(f"{path}: other entries than expected: {sorted(set(told) ^ known)}")
    if told["estimator"] not in ESTIMATORS:
        raise ModelError(f"{path}: there is no estimator {told['estimator']!r} in this fedkin")
    return told


def _shared(place: Path, told: Mapping[str, Any]) -> Arrays:
    path = place / SHARED
    try:
        if hashlib.sha256(path.read_bytes()).hexdigest() != told["sha256"]:
            raise ModelError(f"{path} is not the file that {WORDS} speaks of: it was changed")
        return load_arrays(path)
    except ModelError:
        raise
    except DAMAGE as error:
        raise ModelError(f"{path} cannot be read: {error}") from None


def _own_parts(
    place: Path, told: Mapping[str, Any], sites: bool | Collection[Any]
) -> dict[str, dict[str, Array]]:
    """Parts of the sites whose files are in the folder, by name."""
    folder = place / SITES
    if sites is False or not folder.is_dir():
        return {}
    if sites is True:
        paths = sorted(folder.glob("*.npz"))
    else:
        paths = [folder / f"{file_name(canonical_name(name))}.npz" for name in sites]
    own = {}
    for path in paths:
        try:
            arrays = load_arrays(path)
            name = str(arrays.pop("name"))
        except DAMAGE as error:
            raise ModelError(f"{path} cannot be read: {error}") from None
        begins = (MEMORY, ROWS, NEW_ROWS, OWN, ADAPTED)
        strange = [n for n in arrays if not n.startswith(begins)]
        if strange:
            raise ModelError(f"{path}: unknown part {strange[0]!r}")
        own[name] = arrays
    return own


def _empty(told: Mapping[str, Any]) -> Any:
    """The estimator with its parameters, not fitted."""
    name = told["estimator"]
    family = getattr(import_module(ESTIMATORS[name]), name)
    parameters = {n: decode(v) for n, v in told["parameters"].items()}
    unknown = set(parameters) - set(family._get_param_names())
    if unknown:
        raise ModelError(f"{name} has no parameter {', '.join(sorted(unknown))} in this fedkin")
    return family(**parameters)


def _restored(
    model: Any, told: Mapping[str, Any], shared: Arrays, own: Mapping[str, Mapping[str, Array]]
) -> Any:
    attributes = {name: decode(value) for name, value in told["attributes"].items()}
    strange = set(attributes) - set(model._kept_attributes)
    if strange:
        raise ModelError(f"unknown attribute {sorted(strange)[0]!r}")
    for name, value in attributes.items():
        setattr(model, name, value)
    model._sites_here = frozenset(own)
    model._take_words(decode(told["words"]))
    if told["run"] is not None:
        _restore_run(model, told["run"], shared, own)
    else:
        model._take_at_sites(_own_arrays(own))
    for name, value in attributes.items():
        setattr(model, name, value)
    for name, arrays in own.items():
        if any(key.startswith(ADAPTED) for key in arrays):
            model._adapted[name] = _learnt(arrays)
    for clients in _newcomers(own, model):
        model.adapt(clients)
    return model


def _restore_run(
    model: Any, told: Mapping[str, Any], shared: Arrays, own: Mapping[str, Mapping[str, Array]]
) -> None:
    names = tuple(told["sites"])
    run = Run(
        _result(told["result"], shared),
        Roster(names),
        _traffic(told["traffic"]),
        tuple(Refusal.from_json(one) for one in told["refusals"]),
        tuple(told["dropped"]),
        _memories(told["memories"], names, own),
    )
    settings = type(model)._settings.from_mapping(
        {n: decode(v) for n, v in told["settings"].items()}
    )
    model._take_at_sites(_own_arrays(own))
    if told["rows"] is not None:
        model._take_rows(_rows(told["rows"], names, own))
    model._elsewhere = frozenset(_elsewhere(told, names, own))
    model._keep(run, settings)


def _own_arrays(own: Mapping[str, Mapping[str, Array]]) -> dict[str, dict[str, Array]]:
    """What subclasses keep at sites besides memory and rows."""
    return {
        name: {n.removeprefix(OWN): a for n, a in arrays.items() if n.startswith(OWN)}
        for name, arrays in own.items()
    }


def _elsewhere(
    told: Mapping[str, Any], names: tuple[str, ...], own: Mapping[str, Mapping[str, Array]]
) -> list[str]:
    """Sites of the fit that have something of their own, which is not here."""
    if told["rows"] is None and not told["memories"]:
        return []
    return [] if not own else [name for name in names if name not in own]


def _result(name: str, arrays: Arrays) -> Result:
    kinds = {kind.__name__: kind for kind in _kinds(Result)}
    if name not in kinds:
        raise ModelError(f"there is no result {name!r} in this fedkin")
    unknown = set(arrays) - {one.name for one in fields(kinds[name])}
    if unknown:
        raise ModelError(f"{name} has no {', '.join(sorted(unknown))} in this fedkin")
    return kinds[name].from_arrays(arrays)


def _kinds(kind: type[Result]) -> list[type[Result]]:
    below = [k for sub in kind.__subclasses__() for k in _kinds(sub)]
    return [kind, *below]


def _traffic(told: Mapping[str, Any]) -> Traffic:
    unknown = set(told) - {one.name for one in fields(Traffic)}
    if unknown:
        raise ModelError(f"unknown account of traffic: {', '.join(sorted(unknown))}")
    return Traffic(**told)


def _memories(
    fields_: list[str] | None, names: tuple[str, ...], own: Mapping[str, Mapping[str, Array]]
) -> dict[str, Array] | None:
    """Memories of all sites; those of sites that are not here are stand-ins that nobody uses."""
    if not fields_:
        return None if fields_ is None else {}
    here = [own[name] for name in names if name in own]
    here = [part for part in here if any(n.startswith(MEMORY) for n in part)]
    if not here:
        return None
    full = {}
    for field in fields_:
        key = f"{MEMORY}{field}"
        if any(key not in part for part in here):
            raise ModelError(f"a site's part lacks {field!r}")
        full[field] = np.stack([own.get(name, here[0]).get(key, here[0][key]) for name in names])
    return full


def _rows(
    told: Mapping[str, Any], names: tuple[str, ...], own: Mapping[str, Mapping[str, Array]]
) -> Federation:
    """Rows of the sites that are here; the others have none."""
    d = len(told["features"])
    tables = [np.asarray(own.get(name, {}).get(f"{ROWS}X", np.zeros((0, d)))) for name in names]
    targets = None
    if told["target"] is not None:
        targets = [np.asarray(own.get(n, {}).get(f"{ROWS}y", np.zeros(0))) for n in names]
    sizes = [len(table) for table in tables]
    made = Federation(
        np.ascontiguousarray(np.concatenate([np.zeros((0, d)), *tables])),
        np.concatenate([[0], np.cumsum(sizes)]).astype(np.intp),
        names,
        None if targets is None else np.concatenate([np.zeros(0), *targets]),
        tuple(told["features"]),
        told["target"],
        np.arange(sum(sizes)),
    )
    encoding = told["encoding"]
    return made if encoding is None else replace(made, encoding=Encoding.from_json(encoding))


def _newcomers(own: Mapping[str, Mapping[str, Array]], model: Any) -> list[Federation]:
    """Rows that were given to `adapt`, call by call."""
    calls: dict[int, dict[str, Any]] = {}
    for name, arrays in own.items():
        if f"{NEW_ROWS}call" in arrays:
            y = arrays.get(f"{NEW_ROWS}y")
            X = arrays[f"{NEW_ROWS}X"]
            number = int(arrays[f"{NEW_ROWS}call"])
            calls.setdefault(number, {})[name] = X if y is None else (X, y)
    return [Federation.from_clients(calls[number]) for number in sorted(calls)]


# ------------------------------------------------------------------ words and numbers


def encode(value: Any, name: str) -> Any:
    """A parameter as JSON can hold it; what is no number, text, array or kernel is refused."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if np.isfinite(value) else {"number": repr(value)}
    if isinstance(value, np.generic):
        return encode(value.item(), name)
    if isinstance(value, np.ndarray):
        listed = [encode(item, name) for item in value.ravel().tolist()]
        return {"array": listed, "dtype": value.dtype.str, "shape": list(value.shape)}
    if isinstance(value, Mapping):
        pairs = [[encode(k, name), encode(v, name)] for k, v in value.items()]
        return {"mapping": pairs}
    if isinstance(value, tuple):
        return {"tuple": [encode(item, name) for item in value]}
    if isinstance(value, list):
        return [encode(item, name) for item in value]
    if isinstance(value, np.random.RandomState | np.random.Generator):
        return None
    if hasattr(value, "theta") and hasattr(value, "hyperparameters"):
        from fedkin.models.kernels import to_spec

        return {"kernel": encode(to_spec(value), name)}
    raise TypeError(f"{name} is a {type(value).__name__}, which a model file cannot hold")


def decode(value: Any) -> Any:
    """The inverse of `encode`."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"number"}:
        return float(value["number"])
    if set(value) == {"mapping"}:
        return {decode(k): decode(v) for k, v in value["mapping"]}
    if set(value) == {"tuple"}:
        return tuple(decode(item) for item in value["tuple"])
    if set(value) == {"kernel"}:
        from fedkin.models.kernels import from_spec

        return from_spec(decode(value["kernel"]))
    if set(value) == {"array", "dtype", "shape"}:
        items = [decode(item) for item in value["array"]]
        return np.array(items, dtype=np.dtype(value["dtype"])).reshape(value["shape"])
    raise ModelError(f"unknown entry {sorted(value)}")
