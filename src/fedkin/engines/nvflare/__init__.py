"""Real sites on NVIDIA FLARE 2.9: provision, start, submit, wait, collect, stop.

    kits = provision("federation", ["a", "b", "c"])
    with Deployment(kits, {"a": {"data": "a.csv", "target": "y"}, ...}) as deployment:
        model = FMLR(2, engine=Flare(deployment)).fit()

Who runs where: `provision`, `Deployment` and `Flare` in the caller's process; `Server` in the
server's job process, where the drive loop and the journal are; `Site` in each site's job process,
where data, memory and ledger are. No code travels: fedkin is installed everywhere, a job is a few
JSON files, and every participant's own policy admits just the classes of `kits.ALLOWED`.

FLARE fails a whole job when one site's job process dies and lets nobody rejoin a running job; so a
run that has not ended is submitted again, a bounded number of times, and goes on from the journal.
"""

from fedkin.engines.nvflare.deployment import Deployment, ServerLost
from fedkin.engines.nvflare.engine import Flare, SitesNotReady, Unfinished
from fedkin.engines.nvflare.jobs import Job
from fedkin.engines.nvflare.kits import Kits, provision
from fedkin.engines.nvflare.server_process import Server, understood
from fedkin.engines.nvflare.site_process import Site

__all__ = [
    "Deployment",
    "Flare",
    "Job",
    "Kits",
    "Server",
    "ServerLost",
    "Site",
    "SitesNotReady",
    "Unfinished",
    "provision",
    "understood",
]
