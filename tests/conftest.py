"""One thread a process, and what takes longest first.

Tests run side by side and thin products gain nothing from two threads. Files are handed to workers
in the order in which they are collected: a real federation, which mostly waits, begins at once, and
small files fill the end.
"""

import os
from collections import Counter

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")


def pytest_collection_modifyitems(items):
    tests_in = Counter(item.path for item in items)
    waiting = {item.path for item in items if item.get_closest_marker("flare")}
    items.sort(key=lambda item: (item.path not in waiting, -tests_in[item.path], str(item.path)))
