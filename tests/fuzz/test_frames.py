"""The fuzzer's messages: every kind is among them, and nothing that they are made of surprises a decoder."""

import random
from collections import Counter
from types import UnionType

import pytest

from contracts.errors import MessageError
from contracts.messages.gateway import Drain, ToWorker, decode_from_worker, decode_to_worker
from contracts.messages.handoff import ToDecode, decode_to_decode, decode_to_prefill
from contracts.messages.job import decode_job
from tests.fuzz.frames import RAW, Mutator, Sent, Target, raw

DECODERS = (decode_to_worker, decode_to_decode, decode_to_prefill, decode_from_worker, decode_job)
MESSAGE_COUNT = 8_000
EPOCH = "0123456789abcdef"


@pytest.mark.parametrize("union", [ToWorker, ToDecode], ids=["control", "handoff"])
def test_every_kind_is_made_and_decoders_raise_nothing_else(union: UnionType) -> None:
    mutator = Mutator(Target(union, EPOCH, "f" * 32), seed=5)
    kinds: Counter[str] = Counter()
    decoded: Counter[str] = Counter()
    for _ in range(MESSAGE_COUNT):
        sent = mutator.next()
        kinds[sent.kind] += 1
        for frame in sent.frames[:1]:
            for decode in DECODERS:
                try:
                    message = decode(frame)
                except MessageError:
                    decoded["refused"] += 1
                else:
                    decoded[type(message).__name__] += 1
                    assert not isinstance(message, Drain) or message.receiver != EPOCH
    assert set(kinds) == set(mutator.kinds)
    print(kinds, decoded)
    assert decoded["refused"] > MESSAGE_COUNT and set(decoded) >= {kind.__name__ for kind in union.__args__}


def test_a_seed_makes_the_same_messages() -> None:
    def some(seed: int) -> list[Sent]:
        mutator, chance = Mutator(Target(ToDecode, EPOCH, ""), seed), random.Random(seed)
        return [mutator.next() for _ in range(50)] + [raw(mutator, chance) for _ in range(50)]

    assert some(1) == some(1) != some(2)


def test_raw_connections_are_of_every_kind() -> None:
    mutator, chance = Mutator(Target(ToWorker, EPOCH, ""), 0), random.Random(0)
    assert {raw(mutator, chance).kind for _ in range(200)} == set(RAW)
