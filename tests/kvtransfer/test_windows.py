"""Windows on the way: of the layers that have one, a prompt of eight windows moves one of them, and that is counted."""

import time

import numpy as np
import pytest

from contracts.kv.spec import KVGroup, KVSpec, PayloadConversion, WireForm
from contracts.messages.handoff import Abort, Grant
from infra.network.addresses import Network
from kvtransfer.decode_transfer import DecodeTransfer
from kvtransfer.events import (
    BlocksGranted,
    BlocksTaken,
    BlocksWanted,
    Closed,
    CommitHandoff,
    Landed,
    LayerReady,
    ToDecodeEngine,
    ToPrefillEngine,
    Unpinned,
)
from kvtransfer.handoff import HandoffKey, handoff_blocks
from kvtransfer.prefill_transfer import PrefillTransfer
from kvtransfer.protocol.decode_links import DecodeLinks
from kvtransfer.protocol.instructions import Land, Send
from kvtransfer.protocol.prefill_link import PrefillLink
from tests.kvtransfer.array_pool import ArrayPool
from tests.kvtransfer.pair import CONFIG, DECODE, PREFILL, until
from tests.kvtransfer.test_forms import open_of
from tests.kvtransfer.world import KEY, TOKENS, layer, opened, to_prefill
from tests.network import SECRET

WINDOW, SIZE = 64, 4 << 10
TEXT_TOKENS = 8 * WINDOW
WINDOWED = KVSpec((KVGroup("window", (0, 2), 16, SIZE, window=WINDOW), KVGroup("full", (1,), 16, SIZE)), "test", "none")
BLOCKS = TEXT_TOKENS // 16
SEEN = WINDOW // 16


@pytest.mark.parametrize("held", [(BLOCKS - SEEN, 0), (BLOCKS - 1, 20)], ids=["nothing here", "some here"])
async def test_a_prompt_of_eight_windows_moves_one_of_each_layer_that_has_one(held: tuple[int, int]) -> None:
    network = Network.of(SECRET)
    source, target = ArrayPool(WINDOWED, 64, seed=1), ArrayPool(WINDOWED, 64)
    tables = list(range(40, 40 + SEEN)), list(range(3, 3 + BLOCKS))
    there = [0] * (BLOCKS - SEEN) + list(range(7, 7 + SEEN)), list(range(20, 20 + BLOCKS))
    heard: list[ToPrefillEngine | ToDecodeEngine] = []

    def tell(event: ToDecodeEngine) -> None:
        heard.append(event)
        if isinstance(event, BlocksWanted):
            inbound.handle(BlocksGranted(event.key, there, held))

    inbound = DecodeTransfer(CONFIG, DECODE, WINDOWED, target, network, tell)
    outbound = PrefillTransfer(CONFIG, PREFILL, WINDOWED, source, network, heard.append)
    try:
        address = inbound.handoff_address
        deadline = time.monotonic() + 60
        outbound.handle(opened(TEXT_TOKENS, deadline=deadline, blocks=([], tables[1]), decode_address=address))
        outbound.handle(LayerReady(1, 1, 1, BLOCKS // 2))
        outbound.handle(BlocksTaken(1, 0, [0] * (BLOCKS - SEEN) + tables[0]))
        for group, place in ((0, 0), (1, 1), (0, 2)):
            outbound.handle(LayerReady(1, group, place, BLOCKS))
        outbound.handle(CommitHandoff(1, TOKENS.branches, TOKENS.stages, time.monotonic()))
        await until(lambda: any(isinstance(event, Unpinned) for event in heard), "it does not end")
        (closed,) = [event for event in heard if isinstance(event, Closed)]
        (landed,) = [event for event in heard if isinstance(event, Landed)]
        moved = [BLOCKS - count for count in held]
        assert closed.outcome == "accepted" and closed.digest == landed.digest
        assert closed.bytes == landed.bytes == (2 * moved[0] + moved[1]) * SIZE
        assert moved[0] <= SEEN and target.writes == 2 * moved[0] + moved[1]
        for group, place in ((0, 0), (1, 1), (0, 2)):
            mine, theirs = tables[group][-moved[group] :], there[group][-moved[group] :]
            assert np.array_equal(source.arrays[group, place][mine], target.arrays[group, place][theirs])
        outbound.handle(BlocksTaken(1, 0, []))  # the engine had not heard yet that it is over
    finally:
        await outbound.close()
        await inbound.close()
        await network.destroy()


@pytest.mark.parametrize("theirs", [16, 32, 64])
def test_a_window_lands_from_blocks_of_another_size(theirs: int) -> None:
    """A query behind 517 tokens sees those from 454 on, which our block 14 of 32 begins before."""
    spec = KVSpec((KVGroup("window", (0,), 32, 32 * 4 * 8 * 4, vectors=4, window=WINDOW),), "test", "none", "fp32")
    other = spec.in_form(WireForm("fp32", theirs))
    assert other is not None
    tokens = TEXT_TOKENS + 5
    receivers = DecodeLinks(CONFIG, DECODE, spec)
    receivers.receive(b"link", open_of(other, tokens), 0, 0.0)
    (ours,), (blocks,) = handoff_blocks(spec, tokens), handoff_blocks(other, tokens)
    assert ours == range(14, 17)
    table = [0] * 14 + [5, 6, 7]
    (send,) = receivers.handle(BlocksGranted(KEY, (table,), (14,)), 0.0)
    assert isinstance(send, Send) and isinstance(send.message, Grant) and send.message.held == [blocks.start]
    size = len(blocks) * theirs * 4 * 8 * 4
    (land,) = receivers.receive(b"link", layer(0, 0, blocks.start, len(blocks), size=size), size, 0.0)
    assert isinstance(land, Land)
    form = other.form()
    if theirs == 32:
        assert land.blocks == [5, 6, 7]
    else:
        assert land.blocks == PayloadConversion(form, 0, 0, table, blocks.start * theirs, 14 * 32)
    assert blocks.start * theirs <= tokens - WINDOW + 1 and HandoffKey(PREFILL, 1) == KEY


@pytest.mark.parametrize("held", [[0, 0], [BLOCKS - SEEN - 1, 0], [BLOCKS + 1, 0], [BLOCKS - SEEN]])
def test_a_grant_for_blocks_that_the_window_has_left_is_bad(held: list[int]) -> None:
    senders = PrefillLink(CONFIG, PREFILL, DECODE, WINDOWED)
    senders.open(opened(TEXT_TOKENS), 0.0)
    (send,) = senders.receive(to_prefill(Grant, held=held, limit=1 << 20), 0.0)
    assert isinstance(send, Send) and isinstance(send.message, Abort) and send.message.reason == "bad_grant"
