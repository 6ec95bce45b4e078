"""Tests what the prefill side makes of the engine's events, over a real socket."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import zmq.asyncio

from contracts.messages.gateway import Stages
from contracts.messages.handoff import Branch, Commit, Grant, Open, decode_to_decode
from contracts.messages.job import PrefillJob, Prompt
from contracts.messages.packed_ids import packed
from contracts.messages.wire import encode
from infra.config.transfer import TransferConfig
from infra.network.addresses import Network
from infra.network.bind_address import LOOPBACK_ADDRESS
from infra.network.sockets import router
from kvtransfer.events import Closed, CommitHandoff, LayerReady, OpenHandoff, Unpinned
from kvtransfer.prefill_transfer import PrefillTransfer
from tests.kvtransfer.array_pool import ArrayPool
from tests.network import KEYS, SECRET, guarded
from tests.waiting import DEADLINE_S
from tests.worker.role_bench import LIMITS, SAMPLING, SPEC

SALT = "0af9" * 8
PROMPT = Prompt(list(range(10)), 8, SALT, 3)


def opened(address: str) -> OpenHandoff:
    job = PrefillJob(
        request="r1",
        attempt=1,
        sender="gateway",
        receiver="me",
        prompt=PROMPT,
        sampling=SAMPLING,
        limits=LIMITS,
        deadline=0.0,
        queued_at=0.0,
        decode_epoch="decode",
        decode_address=address,
    )
    now = time.monotonic()
    return OpenHandoff(7, job, packed(PROMPT.token_ids), (0,), now + DEADLINE_S, now + 1, ([1, 2, 3],))


@asynccontextmanager
async def prefill_side() -> AsyncIterator[tuple[PrefillTransfer, zmq.asyncio.Socket]]:
    """Opens a handoff to a decode worker that the test plays: yields the prefill side and that worker's socket."""
    async with guarded() as network, asyncio.timeout(DEADLINE_S):
        socket, address = router(network.context, LOOPBACK_ADDRESS, KEYS)
        outbound = PrefillTransfer(TransferConfig(), "me", SPEC, ArrayPool(SPEC, 8), network, lambda event: None)
        outbound.handle(opened(address))
        yield outbound, socket
        await outbound.close()


async def test_an_open_says_what_the_job_says() -> None:
    async with prefill_side() as (_, socket):
        message = decode_to_decode((await socket.recv_multipart())[1])
    assert isinstance(message, Open)
    assert (message.request, message.samples, message.attempt, message.gateway) == ("r1", (0,), 1, "gateway")
    assert (message.whole_prompt(), message.fingerprint) == (PROMPT.packed(), SPEC.fingerprint())
    assert 0 < message.remaining_ms <= 1000 * DEADLINE_S


async def test_an_address_that_nobody_can_have_ends_the_handoff() -> None:
    events: list[Any] = []
    network = Network.of(SECRET)
    outbound = PrefillTransfer(TransferConfig(), "me", SPEC, ArrayPool(SPEC, 8), network, events.append)
    outbound.handle(opened("nonsense"))
    await outbound.close()
    await network.close()
    closed, unpinned = events
    assert isinstance(closed, Closed) and (closed.handoff, closed.reason, closed.retryable) == (7, "bad_address", True)
    assert unpinned == Unpinned(7) and outbound.counts().given_up == {"bad_address": 1}


async def test_what_passes_until_a_commit_is_sent_is_exposed() -> None:
    """The engine thread says when the prompt was computed; the I/O thread may hear of it later."""
    async with prefill_side() as (outbound, socket):
        link, _ = await socket.recv_multipart()
        grant = Grant(sender="decode", receiver="me", handoff=7, held=[3], limit=0)
        await socket.send_multipart([link, encode(grant)])
        outbound.handle(LayerReady(7, 0, 0, 3))
        outbound.handle(LayerReady(7, 0, 1, 3))
        outbound.handle(CommitHandoff(7, [Branch(0, [7])], Stages(prefill_ms=2.0), time.monotonic() - 0.5))
        while not isinstance(message := decode_to_decode((await socket.recv_multipart())[1]), Commit):
            continue
    assert message.stages.exposed_ms >= 500 and message.stages.prefill_ms == 2.0 and message.index == 2
