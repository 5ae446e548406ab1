"""Linear algebra with one thread while many small matrices are worked on one after another.

LAPACK shares even a 32 x 32 factor out among its threads. They then wait for each other longer than
they compute, and where cores are busy with other work a thousand times longer. So do thousands of
short products, whatever their size.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

# Matrices up to this size are small.
SMALL = 128


@contextmanager
def one_thread(size: int = 0) -> Iterator[None]:
    """Linear algebra takes one thread inside this block, if matrices of this size are small."""
    libraries = _libraries() if size <= SMALL else ()
    many = [(library, n) for library in libraries if (n := library.num_threads) > 1]
    for library, _ in many:
        library.set_num_threads(1)
    try:
        yield
    finally:
        for library, n in many:
            library.set_num_threads(n)


@cache
def _libraries() -> tuple[Any, ...]:
    """The libraries that NumPy and SciPy have loaded for linear algebra."""
    import scipy.linalg.lapack  # noqa: F401
    from threadpoolctl import ThreadpoolController

    return tuple(ThreadpoolController().select(user_api="blas").lib_controllers)
