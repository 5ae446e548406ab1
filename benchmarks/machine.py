"""The machine by its properties: what a reader needs to compare, never its name."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = (
    "numpy",
    "scipy",
    "scikit-learn",
    "cvxpy",
    "clarabel",
    "numba",
    "torch",
    "gpytorch",
    "jax",
)
# Of a processor's many flags those that decide how fast linear algebra is.
FLAGS = ("sse4_2", "avx", "avx2", "fma", "avx512f", "asimd", "sve")


def properties() -> dict[str, str]:
    """Name and value of everything worth knowing."""
    found = {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "instructions": _flags(),
        "caches": _caches(),
        "memory": _memory(),
        "system": f"{platform.system()} {platform.machine()}",
        "Python": platform.python_version(),
        "linear algebra": _blas(),
        "packages": ", ".join(filter(None, map(_installed, PACKAGES))),
    }
    return {name: value for name, value in found.items() if value}


def load() -> float:
    """Processes that wanted a core in the last minute; on an idle machine nearly 0."""
    return os.getloadavg()[0]


def _cpu_info(*keys: str) -> str:
    """The first value of any of the keys in /proc/cpuinfo."""
    path = Path("/proc/cpuinfo")
    for line in path.read_text().splitlines() if path.exists() else []:
        name, _, value = line.partition(":")
        if name.strip() in keys:
            return value.strip()
    return ""


def _processor() -> str:
    family, model = _cpu_info("cpu family"), _cpu_info("model")
    named = _cpu_info("model name") or platform.processor() or platform.machine()
    return f"{named} (family {family}, model {model})" if family else named


def _flags() -> str:
    present = _cpu_info("flags", "Features").split()
    return " ".join(flag for flag in FLAGS if flag in present)


def _caches() -> str:
    found = []
    for entry in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = ((entry / n).read_text().strip() for n in ("level", "type", "size"))
        if kind != "Instruction":
            found.append(f"L{level} {size}")
    return ", ".join(found)


def _memory() -> str:
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return f"{pages * size / 2**30:.0f} GiB"


def _blas() -> str:
    """Libraries NumPy and SciPy have loaded."""
    import scipy.linalg  # noqa: F401
    from threadpoolctl import threadpool_info

    found = {
        f"{lib['internal_api']} {lib['version']} ({lib.get('architecture')})"
        for lib in threadpool_info()
        if lib["user_api"] == "blas"
    }
    return ", ".join(sorted(found))


def _installed(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return ""
