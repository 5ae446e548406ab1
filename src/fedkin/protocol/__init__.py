"""The contract: what an algorithm is, what it may ask, and what may leave a client.

An algorithm is a table of batched client functions and one server program. A client function is

    reply, memory = function(clients, cache, settings, common, personal, memory, keys)

with the client as first axis of every array in `personal`, `memory` and `reply`; `memory` is None
for clients that have none yet. The server program is a generator that yields an `Ask`, is sent
`Replies`, and returns a `Result`. It never sees an engine.

Messages are dictionaries of NumPy arrays with a declared schema. `gate.inspect` is the gate every
reply passes, at the site before it leaves and at the server before the program sees it.
"""

from fedkin.protocol.algorithm import Algorithm, Answer, Program, Step
from fedkin.protocol.gate import Fault, Reason, bind, inspect
from fedkin.protocol.last_replies import LastReplies
from fedkin.protocol.messages import (
    CUT,
    DEFAULT_BOUND,
    LARGEST_MESSAGE,
    MISFIT,
    Ask,
    Behind,
    DrawnSeed,
    Field,
    Memory,
    ProtocolError,
    QuorumLost,
    Replies,
    Roster,
    Schema,
    TracedReply,
    over_roster,
)
from fedkin.protocol.runs import Refusal, Result, Run, Traffic

__all__ = [
    "CUT",
    "DEFAULT_BOUND",
    "LARGEST_MESSAGE",
    "MISFIT",
    "Algorithm",
    "Answer",
    "Ask",
    "Behind",
    "DrawnSeed",
    "Fault",
    "Field",
    "LastReplies",
    "Memory",
    "Program",
    "ProtocolError",
    "QuorumLost",
    "Reason",
    "Refusal",
    "Replies",
    "Result",
    "Roster",
    "Run",
    "Schema",
    "Step",
    "TracedReply",
    "Traffic",
    "bind",
    "inspect",
    "over_roster",
]
