"""Random numbers keyed by (seed, client name, Ask), drawn for all clients at once.

Neither the order of clients, nor the size of a block, nor the engine changes a draw, because
every number is a pure function of its key and its index. The generator is Philox-4x32-10
(Salmon, Moraes, Dror, Shaw 2011) written over NumPy arrays: one NumPy generator per client
would cost 40 microseconds each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedkin.arrays import Floats, Indices

UInts = NDArray[np.uint64]

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
# Multipliers and key increments of Philox-4x32 as published.
_MULTIPLY = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_BUMP = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_ROUNDS = 10


def philox(counter: Sequence[UInts], key: UInts) -> tuple[UInts, UInts, UInts, UInts]:
    """Four random 32-bit words (as uint64) for every counter of four words under a 64-bit key."""
    c0, c1, c2, c3 = counter
    k0, k1 = key & _LOW, key >> _HALF
    for _ in range(_ROUNDS):
        p0, p1 = _MULTIPLY[0] * c0, _MULTIPLY[1] * c2
        c0, c1, c2, c3 = (p1 >> _HALF) ^ c1 ^ k0, p1 & _LOW, (p0 >> _HALF) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + _BUMP[0]) & _LOW, (k1 + _BUMP[1]) & _LOW
    return c0, c1, c2, c3


def name_keys(names: Sequence[str], seed: int) -> UInts:
    """A 64-bit key per client name, (m,)."""
    salt = hashlib.blake2b(str(int(seed)).encode(), digest_size=16).digest()
    digests = b"".join(
        hashlib.blake2b(name.encode(), digest_size=8, key=salt).digest() for name in names
    )
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


@dataclass(frozen=True)
class KeyRing:
    """The keys of a roster; hashed when first used, so that methods without chance pay nothing."""

    names: Sequence[str]
    seed: int

    @cached_property
    def clients(self) -> UInts:
        """One key per client, (m,)."""
        return name_keys(self.names, self.seed)

    def at(self, ask: int, who: Indices | None = None) -> Keys:
        """The keys for one Ask, of all clients or of those in `who`."""
        return Keys(self, ask, who)


@dataclass(frozen=True)
class Keys:
    """What a client function draws its random numbers from; clients are the first axis of all."""

    ring: KeyRing
    ask: int
    who: Indices | None = None
    stream: int = 0

    @property
    def clients(self) -> UInts:
        """One key per client of the block."""
        keys = self.ring.clients
        return keys if self.who is None else keys[self.who]

    def __len__(self) -> int:
        return len(self.ring.names) if self.who is None else len(self.who)

    def take(self, who: Indices) -> Keys:
        """The keys of some clients of the block."""
        return Keys(self.ring, self.ask, who if self.who is None else self.who[who], self.stream)

    def fold(self, stream: int) -> Keys:
        """Keys for draws that are independent of those without `fold`, within one Ask."""
        return Keys(self.ring, self.ask, self.who, stream)

    def uniform(self, *shape: int) -> Floats:
        """Uniform numbers in (0, 1), (m, *shape)."""
        per_client = int(np.prod(shape)) if shape else 1
        return uniforms(self.clients, per_client, self.ask, self.stream).reshape(-1, *shape)

    def normal(self, *shape: int) -> Floats:
        """Standard normal numbers, (m, *shape)."""
        from scipy.special import ndtri

        drawn: Floats = ndtri(self.uniform(*shape))
        return drawn


def uniforms(keys: UInts, n: int, ask: int = 0, stream: int = 0) -> Floats:
    """`n` uniform numbers in (0, 1) for every key, (m, n); number i does not depend on n."""
    blocks = np.arange((n + 1) // 2, dtype=np.uint64)[None, :]
    zero = np.zeros_like(blocks)
    counter = (blocks, zero + np.uint64(stream), zero + np.uint64(ask), zero)
    words = philox(counter, keys[:, None])
    pairs = np.stack([_to_unit(words[0], words[1]), _to_unit(words[2], words[3])], axis=-1)
    return pairs.reshape(len(keys), -1)[:, :n]


def row_uniforms(keys: UInts, rows: UInts, stream: int = 0) -> Floats:
    """One uniform number per (key, row number) pair, for ragged data."""
    zero = np.zeros_like(rows)
    words = philox((rows, zero + np.uint64(stream), zero, zero + np.uint64(1)), keys)
    return _to_unit(words[0], words[1])


def _to_unit(high: UInts, low: UInts) -> Floats:
    """Two 32-bit words to a double strictly inside (0, 1): 52 random bits and a half step."""
    bits = (high << np.uint64(20)) | (low >> np.uint64(12))
    unit: Floats = (bits.astype(np.float64) + 0.5) * 2.0**-52
    return unit
