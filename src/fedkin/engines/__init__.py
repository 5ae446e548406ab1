"""Who carries questions to sites and answers back. Engines know the protocol, not the methods.

`inprocess` holds all sites in one process, `nvflare` reaches real ones; both hand their replies
to the same `drive` loop, which owns draws, quorum, refusals, journal and account.
"""

from fedkin.engines.driver import Rules, drive
from fedkin.engines.inprocess import InProcess, resume
from fedkin.engines.journal import Journal

__all__ = ["InProcess", "Journal", "Rules", "drive", "resume"]
