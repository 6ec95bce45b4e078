"""A long prompt's ids cross an event loop as bytes, packed in pieces, and stay packed: counted, not timed."""

import sys
from array import array
from collections.abc import Iterable

import pytest

from contracts.kv.spec import WireForm
from contracts.messages import packed_ids
from contracts.messages.handoff import Open, decode_to_decode
from contracts.messages.job import Prompt
from contracts.messages.packed_ids import IDS_PER_PIECE, packed, unpacked
from contracts.messages.wire import encode
from tests.opens import open_of

LONG = [1000 + number for number in range(65_536)]  # larger than what Python keeps of each number


def long_open() -> Open:
    return open_of(
        Prompt(LONG, len(LONG), salt="0a" * 16, priority=3),
        sender="p",
        receiver="d",
        handoff=1,
        request="r",
        samples=(0,),
        attempt=1,
        gateway="g",
        remaining_ms=1000.0,
        due_ms=10.0,
        fingerprint="f",
        form=WireForm("fp32", 16),
    )


def test_whoever_receives_an_open_makes_no_number_of_its_ids() -> None:
    data = encode(long_open())
    decode_to_decode(data)  # what is made once
    before = sys.getallocatedblocks()
    message = decode_to_decode(data)
    made = sys.getallocatedblocks() - before
    assert isinstance(message, Open) and message.tokens == len(LONG)
    assert made < 100, "a number of each id would be as many blocks of memory"
    assert message.whole_prompt() == Prompt(array("I", LONG), len(LONG), salt="0a" * 16, priority=3)
    assert sys.getallocatedblocks() - before < 100, "… also where its prompt is used"


@pytest.mark.parametrize("count", [0, 1, IDS_PER_PIECE, IDS_PER_PIECE + 1, 65_536])
def test_ids_are_packed_in_pieces(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def counted(form: str, values: Iterable[int] | bytes) -> "array[int]":
        made = array(form, values)
        sizes.append(len(made))
        return made

    monkeypatch.setattr(packed_ids, "array", counted)
    data = packed(LONG[:count])
    assert data == array("i", LONG[:count]).tobytes() and sum(sizes) == count and max(sizes, default=0) <= IDS_PER_PIECE
    assert unpacked(data).tolist() == LONG[:count]
