"""The control link over real sockets: no work before Hello, every token once asked for, nothing for the dead."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import zmq
import zmq.asyncio

from core.gatekeeper import Gatekeeper
from core.ids import SequenceKey
from core.messages import (
    VERSION,
    Alive,
    Ask,
    Cancel,
    Emitted,
    Ended,
    Failed,
    FromWorker,
    Hello,
    Ping,
    Pong,
    Tokens,
    ToWorker,
    Welcome,
    decode_from_worker,
    encode,
)
from core.sockets import dealer, router
from core.store import ServerClock
from core.strikes import Strikes
from tests.links import KEYS
from worker.events import Kill
from worker.gateway_link import BATCH, GatewayLink
from worker.ledger import Failure, Ledger
from worker.vitals import Vitals

KEY = SequenceKey("gateway-1", 0)
WORKER, GATEWAY = "worker", "gateway"
SECONDS = 10.0


class Setting:
    """A link, and a gateway's end of it."""

    def __init__(self, silence: float) -> None:
        self.context = zmq.asyncio.Context()
        self.ledger = Ledger()
        self.told: list[Any] = []
        self.cancelled: list[tuple[str, int, int]] = []
        self.landing: set[tuple[str, int, int]] = set()
        self.gatekeeper = Gatekeeper(self.context, KEYS)
        socket, self.endpoint = router(self.context, "127.0.0.1", KEYS)
        self.link = GatewayLink(
            socket, WORKER, self.ledger, Vitals(), ServerClock(), silence, self.told.append,
            lambda *what: self.cancelled.append(what), lambda *what: what in self.landing, Strikes(64, 30.0),
        )  # fmt: skip
        self._socket = socket
        self.dealer = dealer(self.context, self.endpoint, KEYS)
        self._task = asyncio.create_task(self.link.run())

    async def send(self, message: ToWorker | bytes) -> None:
        data = message if isinstance(message, bytes) else encode(message)
        await asyncio.wait_for(self.dealer.send(data), SECONDS)

    async def receive(self) -> FromWorker:
        return decode_from_worker(await asyncio.wait_for(self.dealer.recv(), SECONDS))

    async def hello(self) -> None:
        await self.send(Hello(sender=GATEWAY, receiver=WORKER))
        assert isinstance(await self.receive(), Welcome)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self.gatekeeper.close()
        self._socket.close(0)
        self.dealer.close(0)
        self.context.term()


@pytest.fixture
async def setting() -> AsyncIterator[Setting]:
    setting = Setting(silence=30.0)
    yield setting
    await setting.close()


def ends() -> dict[str, str]:
    return {"sender": GATEWAY, "receiver": WORKER}


async def test_nothing_is_done_before_hello_or_for_another_life(setting: Setting) -> None:
    await setting.send(Ping(sender=GATEWAY, receiver=WORKER, number=1))
    await setting.send(Hello(sender=GATEWAY, receiver="an earlier life"))
    await setting.send(b"\x81 no message of ours")
    await setting.hello()  # in order: the three before are through
    assert setting.link.dropped == 3
    await setting.send(Ping(sender=GATEWAY, receiver=WORKER, number=2))
    pong = await setting.receive()
    assert isinstance(pong, Pong) and pong.number == 2 and pong.step_due_ms == 0.0


async def test_a_gateway_of_another_version_learns_ours_and_is_not_heard(setting: Setting) -> None:
    await setting.send(Hello(sender=GATEWAY, receiver=WORKER, version=VERSION + 1))
    welcome = await setting.receive()
    assert isinstance(welcome, Welcome) and welcome.version == VERSION
    await setting.send(Ping(sender=GATEWAY, receiver=WORKER, number=1))
    await setting.hello()
    assert setting.link.dropped == 2  # the Hello, and what came before another


async def test_tokens_before_hello_wait_for_it(setting: Setting) -> None:
    setting.ledger.begin(KEY, 1, GATEWAY, 0, 1e12)
    setting.ledger.emit(Emitted(*KEY, 1, 0, [5, 6]))
    await setting.link.flush(GATEWAY)
    await setting.hello()
    tokens = await setting.receive()
    assert isinstance(tokens, Tokens) and tokens.emitted == [Emitted(*KEY, 1, 0, [5, 6])]


async def test_asking_repeats_from_an_index_or_says_how_it_stands(setting: Setting) -> None:
    await setting.hello()
    await setting.send(Ask(**ends(), request=KEY.request, sample=0, attempt=1, next_index=0))
    unknown = await setting.receive()
    assert isinstance(unknown, Failed) and unknown.reason == "unknown"
    setting.ledger.begin(KEY, 1, GATEWAY, 0, 1e12)
    setting.ledger.note(KEY, 1, "decode")
    await setting.send(Ask(**ends(), request=KEY.request, sample=0, attempt=1, next_index=0))
    alive = await setting.receive()
    assert isinstance(alive, Alive) and alive.state == "decode"
    setting.ledger.emit(Emitted(*KEY, 1, 0, [5, 6], "stop"))
    await setting.link.flush(GATEWAY)
    await setting.receive()
    await setting.send(Ask(**ends(), request=KEY.request, sample=0, attempt=1, next_index=1))
    again = await setting.receive()
    assert isinstance(again, Tokens) and again.emitted == [Emitted(*KEY, 1, 1, [6], "stop")]
    await setting.send(Ended(**ends(), request=KEY.request, sample=0, attempt=1))
    await setting.send(Ask(**ends(), request=KEY.request, sample=0, attempt=1, next_index=1))
    forgotten = await setting.receive()
    assert isinstance(forgotten, Failed) and forgotten.reason == "unknown"
    assert setting.told == []


async def test_what_is_landing_is_alive_though_the_engine_has_not_begun_it(setting: Setting) -> None:
    await setting.hello()
    setting.landing.add((KEY.request, 0, 2))
    for attempt, state in ((2, "landing"), (1, None)):
        await setting.send(Ask(**ends(), request=KEY.request, sample=0, attempt=attempt, next_index=0))
        answer = await setting.receive()
        assert (answer.state if isinstance(answer, Alive) else None) == state


async def test_every_cancel_is_answered_and_the_first_kills(setting: Setting) -> None:
    await setting.hello()
    setting.ledger.begin(KEY, 2, GATEWAY, 0, 1e12)
    for expected in ("cancelled", "unknown"):
        await setting.send(Cancel(**ends(), request=KEY.request, sample=0, attempt=2))
        failed = await setting.receive()
        assert isinstance(failed, Failed) and failed.reason == expected
    assert setting.told == [Kill(KEY, 2, "cancelled")]
    assert setting.cancelled == [(*KEY, 2)] * 2


async def test_the_engine_hears_once_of_a_cancel_of_what_is_landing(setting: Setting) -> None:
    await setting.hello()
    setting.landing.add((KEY.request, 3, 1))
    for _ in range(2):
        await setting.send(Cancel(**ends(), request=KEY.request, sample=3, attempt=1))
        failed = await setting.receive()
        assert isinstance(failed, Failed) and failed.reason == "unknown"
    assert setting.told == [Kill(SequenceKey(KEY.request, 3), 1, "cancelled")]


async def test_cancels_of_what_is_not_here_cost_the_engine_nothing(setting: Setting) -> None:
    """Or a flood of them within one step would fill its inbox, and end the worker."""
    await setting.hello()
    for number in range(5):
        await setting.send(Cancel(**ends(), request=f"{KEY.request}-{number}", sample=0, attempt=1))
        failed = await setting.receive()
        assert isinstance(failed, Failed) and failed.reason == "unknown"
    assert setting.told == [] and len(setting.cancelled) == 5


async def test_a_peer_of_nonsense_is_cut_off_and_another_is_heard(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    enemy = dealer(setting.context, setting.endpoint, KEYS)
    for _ in range(100):
        await asyncio.wait_for(enemy.send(b"\xc1nonsense"), SECONDS)
    await setting.hello()
    while setting.link.dropped < 100:  # the test's own time limit bounds it
        await asyncio.sleep(0)
    enemy.close(0)
    assert caplog.text.count("is cut off") == 1 and len(caplog.records) == 1


async def test_a_failure_comes_after_the_tokens_before_it(setting: Setting) -> None:
    await setting.hello()
    setting.ledger.begin(KEY, 1, GATEWAY, 0, 1e12)
    setting.ledger.emit(Emitted(*KEY, 1, 0, [5]))
    setting.ledger.fail(KEY, 1, Failure("engine", "non-finite logits"))
    await setting.link.flush(GATEWAY)
    assert isinstance(await setting.receive(), Tokens)
    failed = await setting.receive()
    assert isinstance(failed, Failed) and failed.message == "non-finite logits" and not failed.retryable
    assert setting.ledger.owing(GATEWAY) == []


async def test_a_silent_gateways_sequences_are_freed() -> None:
    setting = Setting(silence=0.0)
    try:
        await setting.hello()
        setting.ledger.begin(KEY, 1, GATEWAY, 0, 1e12)
        stranger = SequenceKey("stranger-1", 0)
        setting.ledger.begin(stranger, 1, "never said Hello", 0, 1e12)
        setting.link.watch()
        setting.link.watch()  # a stranger's silence counts from the first look
        assert setting.told == [Kill(KEY, 1, "gateway silent"), Kill(stranger, 1, "gateway silent")]
        assert len(setting.ledger) == 0
    finally:
        await setting.close()


class EndlessSocket:
    """Always has another message, so that reading it never suspends."""

    async def recv_multipart(self) -> list[bytes]:
        return [b"peer", b"noise"]


async def test_a_flood_leaves_other_tasks_their_turn() -> None:
    socket: Any = EndlessSocket()
    nothing: Any = None
    link = GatewayLink(
        socket, WORKER, Ledger(), Vitals(), ServerClock(), 5.0, nothing, nothing, nothing, Strikes(64, 30.0)
    )
    task = asyncio.create_task(link.run())
    for turn in range(1, 4):
        await asyncio.sleep(0)
        assert 0 < link.dropped <= turn * BATCH
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
