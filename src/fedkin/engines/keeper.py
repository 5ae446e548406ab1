"""Ends the processes of a federation whose driver is gone, however it went.

The driver starts this file as a script and keeps a pipe to it: a line "pid start-time" for every
process it started, "done" when it has ended them itself. When the pipe closes without that word,
the driver died, and its processes and their children are ended here.
"""

from __future__ import annotations

import contextlib
import sys

import psutil

# A process that was started at another time only has the same number.
SAME_TIME = 0.01
WAIT = 5.0


def keep(lines: list[str]) -> None:
    """End the processes that the lines name, with their children."""
    victims = []
    for line in lines:
        pid, started = line.split()
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(int(pid))
            if abs(process.create_time() - float(started)) < SAME_TIME:
                victims += [process, *process.children(recursive=True)]
    for victim in victims:
        with contextlib.suppress(psutil.Error):
            victim.kill()
    psutil.wait_procs(victims, timeout=WAIT)


if __name__ == "__main__":
    told = [line.strip() for line in sys.stdin]
    if "done" not in told:
        keep([line for line in told if line])
