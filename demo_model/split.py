"""Decides which questions the model never sees in training.

The held-out figures mean something only if no held-out question slips into the training text by another road (a
dialog, a long conversation). So membership is a property of the question itself: a hash of its key decides, everywhere
the same, and every generator draws until the hash agrees with the split it was asked for.
"""

import hashlib
from collections.abc import Callable
from enum import Enum
from random import Random
from typing import TypeVar

T = TypeVar("T")


class Split(Enum):
    """The two sides of the split, which never share a key."""

    TRAIN = "train"
    HELD_OUT = "held out"


HELD_OUT_PERCENT = 10


def split_of(key: str) -> Split:
    """Returns the side of a key, which is the same in every process and on every machine, unlike `hash()`."""
    bucket = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "little") % 100
    return Split.HELD_OUT if bucket < HELD_OUT_PERCENT else Split.TRAIN


def draw(rng: Random, split: Split, sample: Callable[[Random], T], key: Callable[[T], str]) -> T:
    """Samples until the key lies on the wanted side.

    Raises RuntimeError if a thousand draws find nothing: then the sampler cannot reach that side at all.
    """
    for _ in range(1000):
        item = sample(rng)
        if split_of(key(item)) is split:
            return item
    raise RuntimeError(f"no sample on the {split.value} side in 1000 draws")
