"""Ends the processes of a federation whose driver is gone, however it went.

The driver starts this file as a script (`Keeper`) and keeps a pipe to it: a line "pid start-time"
for every process it started, "done" when it has ended them itself. When the pipe closes without
that word, the driver died, and its processes and their children are ended here.
"""

from __future__ import annotations

import contextlib
import subprocess
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


class Keeper:
    """In the driver: has its processes ended if it dies itself."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def watch(self, pid: int) -> None:
        """Have this process ended with its children if the driver dies."""
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        with contextlib.suppress(psutil.NoSuchProcess):
            self._tell(f"{pid} {psutil.Process(pid).create_time():.6f}")

    def done(self) -> None:
        """The driver has ended its processes itself."""
        if self._process is None:
            return
        self._tell("done")
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]
        self._process.wait(timeout=2 * WAIT)
        self._process = None

    def _tell(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.write(line.encode() + b"\n")
                self._process.stdin.flush()


if __name__ == "__main__":
    told = [line.strip() for line in sys.stdin]
    if "done" not in told:
        keep([line for line in told if line])
