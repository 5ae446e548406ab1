"""Tests under foreign kernels: `python -m tests.portable [--kernel NAME ...] [tests ...]`.

Another processor adds in another order and rounds elsewhere. OpenBLAS and NumPy choose their
kernels when they are loaded and can be told to take those of an older processor, and so can the C
library its exponentials: a test that holds here and not there hangs on rounding.

| kernel       | processor                                | threads |
|--------------|------------------------------------------|---------|
| `haswell-1`  | a laptop: AVX2, without AVX-512          | 1       |
| `haswell-2`  | the same                                 | 2       |
| `nehalem-1`  | vectors of two numbers, no fused product | 1       |
| `prescott-2` | as old as x86-64                         | 2       |
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
from functools import cache
from typing import Any, NamedTuple

TESTS = ("tests/maths", "tests/conformance", "tests/smoke", "tests/discordant")
PASSED, IMPOSSIBLE = "passed", "not possible on this processor"
CORES = 2
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
CHOICES = ("OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES", "GLIBC_TUNABLES", *THREADS)
# NumPy's names of what came with AVX-512 begin like this; of what came with AVX and AVX2.
AVX512 = ("AVX512", "X86_V4")
AVX2 = ("AVX", "F16C", "XOP", "FMA4", "FMA3", "AVX2", "X86_V3")
# The C library's names; it takes no notice of those that it does not know.
C_WITHOUT_AVX2 = "glibc.cpu.hwcaps=-AVX512F,-AVX2,-FMA"
# OpenBLAS has one kernel for several old cores and names it after the first of them.
ALSO_CALLED = {"Prescott": "Katmai"}

PROBE = """
import json
import scipy.linalg
from numpy._core import _multiarray_umath as numpy
from threadpoolctl import threadpool_info
blas = [found for found in threadpool_info() if found["user_api"] == "blas"]
print(json.dumps({
    "dispatched": [name for name in numpy.__cpu_dispatch__ if numpy.__cpu_features__[name]],
    "avx2": numpy.__cpu_features__.get("AVX2", False),
    "cores": sorted({found.get("architecture") or found["internal_api"] for found in blas}),
    "threads": sorted({found["num_threads"] for found in blas}),
}))
"""


class Kernel(NamedTuple):
    """The kernels of an older processor, and how many threads."""

    core: str
    avx2: bool
    threads: int

    def possible(self) -> bool:
        """Whether this processor can run it."""
        if platform.machine() not in ("x86_64", "AMD64"):
            return False
        return not self.avx2 or bool(own_kernel()["avx2"])

    def environment(self) -> dict[str, str]:
        """The environment of a process that is to use it."""
        newer = [name for name in own_kernel()["dispatched"] if self._lacks(name)]
        chosen = {"OPENBLAS_CORETYPE": self.core, "NPY_DISABLE_CPU_FEATURES": ",".join(newer)}
        if not self.avx2:
            chosen["GLIBC_TUNABLES"] = C_WITHOUT_AVX2
        return {**own_environment(), **chosen, **dict.fromkeys(THREADS, str(self.threads))}

    def _lacks(self, feature: str) -> bool:
        return feature.startswith(AVX512) or (feature in AVX2 and not self.avx2)

    def check(self) -> str:
        """What a process under it really has, in words; RuntimeError if that is something else."""
        found = kernel_of(self.environment())
        wanted = {self.core, ALSO_CALLED.get(self.core, self.core)}
        newer = [name for name in found["dispatched"] if self._lacks(name)]
        if not set(found["cores"]) <= wanted or newer:
            raise RuntimeError(f"asked for {self}, had {found}")
        return in_words(found)


KERNELS = {
    "haswell-1": Kernel("Haswell", True, 1),
    "haswell-2": Kernel("Haswell", True, 2),
    "nehalem-1": Kernel("Nehalem", False, 1),
    "prescott-2": Kernel("Prescott", False, 2),
}


def own_environment() -> dict[str, str]:
    """The environment of a process that is to use this processor's own kernels."""
    return {name: value for name, value in os.environ.items() if name not in CHOICES}


@cache
def own_kernel() -> dict[str, Any]:
    """What NumPy and OpenBLAS choose here; this process may have been told otherwise."""
    return kernel_of(own_environment())


def kernel_of(environment: dict[str, str]) -> dict[str, Any]:
    """What NumPy and OpenBLAS choose in a process with this environment."""
    command = [sys.executable, "-W", "error::ImportWarning", "-c", PROBE]
    ran = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def in_words(kernel: dict[str, Any]) -> str:
    """One line."""
    cores, threads = ("/".join(map(str, kernel[part])) for part in ("cores", "threads"))
    return f"BLAS {cores}, {threads} threads, NumPy {'+'.join(kernel['dispatched']) or 'baseline'}"


def run(kernel: Kernel, tests: list[str]) -> int:
    """The exit code of pytest under a kernel."""
    workers = max(1, CORES // kernel.threads)
    spread = ["-n", str(workers), "--dist", "loadfile"] if workers > 1 else []
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *spread, *tests]
    return subprocess.run(command, env=kernel.environment(), check=False).returncode


def outcome(code: int) -> str:
    """In words, how pytest ended; a signal is no verdict on the tests."""
    if code < 0:
        return f"ended by {signal.Signals(-code).name} before it was done"
    return PASSED if code == 0 else f"fell (exit code {code})"


def main() -> int:
    """Run the tests under every kernel asked for; 1 if any fell."""
    parser = argparse.ArgumentParser(description="Run tests under foreign kernels.")
    parser.add_argument("--kernel", action="append", choices=KERNELS, help="default: all")
    parser.add_argument("tests", nargs="*", default=TESTS, help=f"default: {' '.join(TESTS)}")
    chosen = parser.parse_args()
    print(f"own: {in_words(own_kernel())}")
    results = {}
    for name in chosen.kernel or KERNELS:
        if not KERNELS[name].possible():
            results[name] = IMPOSSIBLE
            continue
        print(f"{name}: {KERNELS[name].check()}", flush=True)
        results[name] = outcome(run(KERNELS[name], list(chosen.tests)))
    for name, words in results.items():
        print(f"{name}: {words}")
    return int(any(words not in (PASSED, IMPOSSIBLE) for words in results.values()))


if __name__ == "__main__":
    sys.exit(main())
