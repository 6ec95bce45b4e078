"""What the prefill side's I/O thread makes of the engine's events, over a real socket."""

import asyncio
from typing import Any

from core.config import TransferConfig
from core.messages import Branch, Commit, Grant, Open, PrefillJob, Stages, ToDecode, decode_to_decode, encode
from core.network import Network
from core.records import HandoffCounts
from core.sockets import router
from core.store import ServerClock
from kvtransfer.moves import Closed, FirstTokens, Unpinned
from prefill_service.transfer import PrefillTransfer
from tests.kvtransfer.array_pool import ArrayPool
from tests.links import KEYS, SECRET, guarded
from tests.worker.roles import LIMITS, SAMPLING, SPEC
from worker.events import CommitHandoff, LayerWritten, OpenHandoff

SALT = "0af9" * 8


def opened(clock: ServerClock, address: str) -> OpenHandoff:
    job = PrefillJob(
        request="r1", attempt=1, sender="gateway", receiver="me", token_ids=list(range(10)), prompt_tokens=8,
        sampling=SAMPLING, limits=LIMITS, deadline=clock.now() + 5, queued_at=clock.now(), decode_epoch="decode",
        decode_address=address, salt=SALT, priority=3,
    )  # fmt: skip
    return OpenHandoff(7, job, (0,), ([1, 2, 3],))


def test_an_open_says_what_the_job_says() -> None:
    async def run() -> ToDecode:
        clock, memory = ServerClock(), ArrayPool(SPEC, 8)
        async with guarded() as network, asyncio.timeout(5):
            socket, address = router(network.context, "127.0.0.1", KEYS)
            transfer = PrefillTransfer(TransferConfig(), "me", SPEC, memory, clock, network, lambda event: None)
            assert transfer.handle(opened(clock, address))
            _, data = await socket.recv_multipart()
            await transfer.close()
        return decode_to_decode(data)

    message = asyncio.run(run())
    assert isinstance(message, Open)
    assert (message.request, message.samples, message.attempt, message.gateway) == ("r1", (0,), 1, "gateway")
    assert (message.token_ids, message.prompt_tokens) == (list(range(10)), 8)
    assert (message.salt, message.priority, message.fingerprint) == (SALT, 3, SPEC.fingerprint())
    assert 4000 < message.remaining_ms <= 5000


def test_an_address_that_nobody_can_have_ends_the_handoff() -> None:
    events: list[Any] = []

    async def run() -> HandoffCounts:
        network = Network.of(SECRET)
        clock = ServerClock()
        memory = ArrayPool(SPEC, 8)
        transfer = PrefillTransfer(TransferConfig(), "me", SPEC, memory, clock, network, events.append)
        assert transfer.handle(opened(clock, "nonsense"))
        await transfer.close()
        await network.close()
        return transfer.counts()

    counts = asyncio.run(run())
    closed, unpinned = events
    assert isinstance(closed, Closed) and (closed.handoff, closed.reason, closed.retryable) == (7, "bad_address", True)
    assert unpinned == Unpinned(7) and counts.given_up == {"bad_address": 1}


def test_what_passes_until_a_commit_is_sent_is_exposed() -> None:
    """The engine thread says when the prompt was computed; the I/O thread may hear of it later."""

    async def run() -> ToDecode:
        clock, memory = ServerClock(), ArrayPool(SPEC, 8)
        async with guarded() as network, asyncio.timeout(5):
            socket, address = router(network.context, "127.0.0.1", KEYS)
            transfer = PrefillTransfer(TransferConfig(), "me", SPEC, memory, clock, network, lambda event: None)
            transfer.handle(opened(clock, address))
            link, _ = await socket.recv_multipart()
            grant = Grant(sender="decode", receiver="me", handoff=7, held=3, limit=0)
            await socket.send_multipart([link, encode(grant)])
            first = FirstTokens(
                index=0, branches=[Branch(0, [7])], sampling=SAMPLING, limits=LIMITS, stages=Stages(prefill_ms=2.0)
            )
            transfer.handle(LayerWritten(0, 0, [(7, 3)]))
            transfer.handle(LayerWritten(0, 1, [(7, 3)]))
            transfer.handle(CommitHandoff(7, first, clock.now() - 0.5))
            while not isinstance(message := decode_to_decode((await socket.recv_multipart())[1]), Commit):
                continue
            await transfer.close()
        return message

    message = asyncio.run(run())
    assert isinstance(message, Commit)
    assert message.stages.exposed_ms >= 500 and message.stages.prefill_ms == 2.0
