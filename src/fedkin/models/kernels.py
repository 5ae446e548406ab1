"""Kernels as data: an allow-listed grammar, free log-parameters with bounds, and the fast family.

A kernel travels and is saved as nested dictionaries of words and numbers that name
scikit-learn's kernels and their parameters; it is looked up, never evaluated. Its free
parameters are logarithms in scikit-learn's own order (`theta`). A scale times an RBF or
Matern-1/2, 3/2, 5/2 correlation plus noise, in any order and with parts left out, is recognised
as the fast family and has formulas of its own; every other kernel goes through its own gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedkin.arrays import Bools, Floats, Indices

Spec = Mapping[str, Any]

# What may be named, and with which numbers. Everything else is refused.
NUMBERS: dict[str, tuple[str, ...]] = {
    "ConstantKernel": ("constant_value",),
    "WhiteKernel": ("noise_level",),
    "RBF": ("length_scale",),
    "Matern": ("length_scale", "nu"),
    "RationalQuadratic": ("length_scale", "alpha"),
    "ExpSineSquared": ("length_scale", "periodicity"),
    "DotProduct": ("sigma_0",),
    "Exponentiation": ("exponent",),
}
PARTS: dict[str, tuple[str, ...]] = {
    "Sum": ("k1", "k2"),
    "Product": ("k1", "k2"),
    "Exponentiation": ("base",),
}
# scikit-learn's name of a part where the grammar needs another.
ATTRIBUTES = {"base": "kernel"}
UNBOUNDED = {"nu", "exponent"}
# Smoothness of the Matern correlations that have a formula; infinite is RBF.
FAST_SMOOTHNESS = (0.5, 1.5, 2.5, np.inf)
# Bounds of the default kernel: scale, length scale in units of the feature's spread, noise.
SCALE_BOUNDS = (1e-4, 1e4)
LENGTH_BOUNDS = (1e-2, 1e4)
NOISE_BOUNDS = (1e-8, 1e2)
DEFAULT_NOISE = 0.1
# Nested deeper than any kernel a person writes; a message that is deeper is an attack.
DEEPEST = 20


class Fast(NamedTuple):
    """scale * correlation(distance / length scales) + noise.

    `full` holds log scale, log length scales (one, or one per feature) and log noise, with the
    fixed ones filled in; `free` says where the free parameters go.
    """

    smoothness: float
    full: Floats
    free: Indices

    def fill(self, theta: Floats) -> Floats:
        """All log-parameters (..., q) from the free ones (..., p)."""
        full = np.broadcast_to(self.full, (*theta.shape[:-1], len(self.full))).copy()
        full[..., self.free] = theta
        return full


class Form(NamedTuple):
    """A kernel with its free log-parameters: names, start and bounds (p,)."""

    spec: Spec
    names: tuple[str, ...]
    start: Floats
    lower: Floats
    upper: Floats
    fast: Fast | None

    @property
    def is_scale(self) -> Bools:
        """Which parameters are variances of the signal, (p,)."""
        return np.array([name == "constant_value" for name in self.names], dtype=bool)


def default_spec(spread: Floats, variance: float = 1.0) -> Spec:
    """ARD RBF times scale plus noise for targets of that variance.

    Length scales start at the features' spread times the root of their number.
    """
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    spread = np.where(spread > 0, spread, 1.0)
    shape = RBF(spread * np.sqrt(len(spread)), np.outer(spread, LENGTH_BOUNDS))
    scale = ConstantKernel(variance, np.multiply(variance, SCALE_BOUNDS))
    noise = WhiteKernel(variance * DEFAULT_NOISE, np.multiply(variance, NOISE_BOUNDS))
    return to_spec(scale * shape + noise)


# ------------------------------------------------------------------ grammar


def to_spec(kernel: Any) -> Spec:
    """A scikit-learn kernel as data."""
    from sklearn.gaussian_process import kernels

    kind = type(kernel).__name__
    # A class of somebody else's with a name of the list would be taken for what it is not.
    _allowed(
        kind if type(kernel) is getattr(kernels, kind, None) else f"{kind} (not scikit-learn's)"
    )
    spec: dict[str, Any] = {"kernel": kind}
    for part in PARTS.get(kind, ()):
        spec[part] = to_spec(getattr(kernel, ATTRIBUTES.get(part, part)))
    for name in NUMBERS.get(kind, ()):
        spec[name] = _plain(getattr(kernel, name))
        if name not in UNBOUNDED:
            bounds = getattr(kernel, f"{name}_bounds")
            spec[f"{name}_bounds"] = bounds if isinstance(bounds, str) else _plain(bounds)
    return checked(spec)


def from_spec(spec: Spec) -> Any:
    """The scikit-learn kernel that a spec names."""
    from sklearn.gaussian_process import kernels

    kind = checked(spec)["kernel"]
    parts = PARTS.get(kind, ())
    arguments = {ATTRIBUTES.get(part, part): from_spec(spec[part]) for part in parts}
    for name in set(spec) - {"kernel", *parts}:
        value = spec[name]
        # Bounds for all length scales together are a pair, not an array.
        pair = name.endswith("_bounds") and np.ndim(value) == 1
        arguments[name] = tuple(value) if pair else np.array(value) if np.ndim(value) else value
    return getattr(kernels, kind)(**arguments)


def checked(spec: Any, depth: int = 0) -> Spec:
    """The spec itself if it keeps to the grammar; else an error that names the fault."""
    if not isinstance(spec, Mapping) or not isinstance(spec.get("kernel"), str):
        raise ValueError("a kernel must be a mapping with the word 'kernel'")
    if depth > DEEPEST:
        raise ValueError("the kernel is nested too deeply")
    kind = spec["kernel"]
    _allowed(kind)
    numbers, parts = NUMBERS.get(kind, ()), PARTS.get(kind, ())
    bounds = {f"{name}_bounds" for name in numbers if name not in UNBOUNDED}
    if set(spec) - {"kernel", *parts, *numbers} - bounds or not set(spec) >= {*parts, *numbers}:
        raise ValueError(f"{kind} takes {', '.join([*parts, *numbers, *sorted(bounds)])}")
    for part in parts:
        checked(spec[part], depth + 1)
    for name in set(spec) - {"kernel"} - set(parts):
        fixed = name in bounds and spec[name] == "fixed"
        if not fixed and not _numeric(spec[name]):
            raise ValueError(f"{kind}: {name} must be made of positive numbers")
    return spec


def _allowed(kind: str) -> None:
    if kind not in NUMBERS and kind not in PARTS:
        known = ", ".join(sorted({*NUMBERS, *PARTS}))
        raise ValueError(f"the kernel {kind!r} is not on the list: {known}")


def _numeric(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return len(value) > 0 and all(_numeric(item) for item in value)
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _plain(value: Any) -> Any:
    array = np.asarray(value, dtype=np.float64)
    return array.tolist() if array.ndim else float(array)


# ------------------------------------------------------------------ free parameters


def form_of(spec: Spec, n_features: int) -> Form:
    """Free parameters and bounds of a kernel for rows of this many features."""
    kernel = from_spec(spec)
    for leaf in _leaves(spec):
        width = np.size(leaf.get("length_scale", 1.0))
        if width not in (1, n_features):
            raise ValueError(
                f"{leaf['kernel']} has {width} length scales, the data have {n_features} features"
            )
    free = [one for one in kernel.hyperparameters if not one.fixed]
    names = [one.name.rpartition("__")[2] for one in free for _ in range(one.n_elements)]
    lower, upper = kernel.bounds.reshape(-1, 2).T
    return Form(spec, tuple(names), kernel.theta, lower, upper, _fast(spec))


def is_fast(spec: Spec) -> bool:
    """Whether a kernel is of the fast family."""
    return _fast(spec) is not None


def _leaves(spec: Spec) -> Iterator[Spec]:
    parts = PARTS.get(spec["kernel"], ())
    if not parts:
        yield spec
    for part in parts:
        yield from _leaves(spec[part])


def _fast(spec: Spec) -> Fast | None:
    """The fast family's parameters, or None if the kernel is another."""
    noise, signal = _parted(spec, "Sum", "WhiteKernel")
    if len(signal) != 1 or len(noise) > 1:
        return None
    scale, shape = _parted(signal[0], "Product", "ConstantKernel")
    if len(shape) != 1 or len(scale) > 1 or shape[0]["kernel"] not in ("RBF", "Matern"):
        return None
    smoothness = float(shape[0].get("nu", np.inf))
    if smoothness not in FAST_SMOOTHNESS:
        return None
    values = [
        [scale[0]["constant_value"]] if scale else [1.0],
        list(np.atleast_1d(shape[0]["length_scale"])),
        [noise[0]["noise_level"]] if noise else [0.0],
    ]
    begin = {"ConstantKernel": 0, "RBF": 1, "Matern": 1, "WhiteKernel": 1 + len(values[1])}
    free: list[int] = []
    for leaf in _leaves(spec):
        first = begin[leaf["kernel"]]
        free += range(first, first + from_spec(leaf).n_dims)
    with np.errstate(divide="ignore"):
        full = np.log(np.concatenate(values).astype(np.float64))
    return Fast(smoothness, full, np.array(free, dtype=np.intp))


def _parted(spec: Spec, operator: str, kind: str) -> tuple[list[Spec], list[Spec]]:
    """The terms of a sum or product that are of one kind, and the others."""
    terms = _flat(spec, operator)
    return [t for t in terms if t["kernel"] == kind], [t for t in terms if t["kernel"] != kind]


def _flat(spec: Spec, operator: str) -> list[Spec]:
    if spec["kernel"] != operator:
        return [spec]
    return _flat(spec["k1"], operator) + _flat(spec["k2"], operator)
