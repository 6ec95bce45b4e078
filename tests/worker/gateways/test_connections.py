"""Tests connections over real sockets: no work before Hello, tokens again when asked for, nothing for the dead."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec import structs

from contracts.ids import AttemptKey
from contracts.messages.gateway import (
    STATE_HANDED_OFF,
    STATE_HANDING_OFF,
    Alive,
    Ask,
    Cancel,
    Emitted,
    Ended,
    Failed,
    Hello,
    Ping,
    Pong,
    Question,
    Tokens,
    Welcome,
)
from contracts.messages.wire import VERSION
from infra.network.sockets import dealer
from infra.redis.worker_load import WorkerLoad
from pricing.routes.backlog import Backlog
from pricing.step_costs.steps import pairs_of
from tests.network import KEYS
from tests.waiting import DEADLINE_S
from tests.worker.gateway_end import GATEWAY_EPOCH, WORKER_EPOCH, Landings, Setting, life
from worker.engine_status import EngineActivity, PromptCounts
from worker.events import AttemptFailure, Emit, Kill
from worker.gateways.connections import MAX_MESSAGE_TOKENS, MESSAGES_PER_TURN, GatewayConnections

KEY = AttemptKey("gateway-1", 0, 1)
PROMPT_TOKENS = 8000  # tokens


@pytest.fixture
async def setting() -> AsyncIterator[Setting]:
    setting = Setting(silence=30.0)
    yield setting
    await setting.close()


def ends() -> dict[str, str]:
    return {"sender": GATEWAY_EPOCH, "receiver": WORKER_EPOCH}


async def test_nothing_is_done_before_hello_or_for_another_life(setting: Setting) -> None:
    await setting.send(Ping(sender=GATEWAY_EPOCH, receiver=WORKER_EPOCH, number=1))
    await setting.send(Hello(sender=GATEWAY_EPOCH, receiver="an earlier life"))
    await setting.send(b"\x81 no message of ours")
    await setting.hello()  # in order: the three before are through
    assert setting.connections.dropped == 3
    await setting.send(Ping(sender=GATEWAY_EPOCH, receiver=WORKER_EPOCH, number=2))
    pong = await setting.receive()
    assert isinstance(pong, Pong) and pong.number == 2 and pong.step_due_ms == 0.0


async def test_a_pong_tells_what_is_before_the_engine_and_on_its_way_there(setting: Setting) -> None:
    status = setting.life.status
    status.posted = PromptCounts().and_prompt(10).and_prompt(20)
    status.shows(
        WorkerLoad(backlog=Backlog(prompts=2, tokens=30, sequences=5, free_blocks=7)), PromptCounts().and_prompt(10)
    )
    await setting.hello()
    await setting.send(Ping(sender=GATEWAY_EPOCH, receiver=WORKER_EPOCH, number=1))
    pong = await setting.receive()
    assert isinstance(pong, Pong) and pong.backlog is not None and 0 < pong.backlog.age_ms < DEADLINE_S * 1000
    told = Backlog(prompts=3, tokens=50, pairs=pairs_of(0, 20), sequences=5, free_blocks=7)
    assert structs.replace(pong.backlog, age_ms=0.0) == told


async def test_a_gateway_of_another_version_learns_ours_and_is_not_heard(setting: Setting) -> None:
    await setting.send(Hello(sender=GATEWAY_EPOCH, receiver=WORKER_EPOCH, version=VERSION + 1))
    welcome = await setting.receive()
    assert isinstance(welcome, Welcome) and welcome.version == VERSION
    await setting.send(Ping(sender=GATEWAY_EPOCH, receiver=WORKER_EPOCH, number=1))
    await setting.hello()
    assert setting.connections.dropped == 2  # the Hello, and what came before another


async def test_tokens_before_hello_wait_for_it(setting: Setting) -> None:
    setting.ledger.begin(KEY, GATEWAY_EPOCH, 0, 1e12)
    setting.ledger.emit(Emitted(KEY, 0, [5, 6]))
    await setting.connections._flush(GATEWAY_EPOCH)
    await setting.hello()
    tokens = await setting.receive()
    assert isinstance(tokens, Tokens) and tokens.emitted == [Emitted(KEY, 0, [5, 6])]


async def test_asking_repeats_from_an_index_or_says_how_it_stands(setting: Setting) -> None:
    await setting.hello()
    await setting.send(Ask(**ends(), asked=(Question(KEY, 0),)))
    unknown = await setting.receive()
    assert isinstance(unknown, Failed) and unknown.reason == "unknown"
    setting.ledger.begin(KEY, GATEWAY_EPOCH, 0, 1e12)
    setting.ledger.note(KEY, "decode")
    await setting.send(Ask(**ends(), asked=(Question(KEY, 0),)))
    alive = await setting.receive()
    assert isinstance(alive, Alive) and alive.state == "decode"
    setting.ledger.emit(Emitted(KEY, 0, [5, 6], "stop"))
    await setting.connections._flush(GATEWAY_EPOCH)
    await setting.receive()
    await setting.send(Ask(**ends(), asked=(Question(KEY, 1),)))
    again = await setting.receive()
    assert isinstance(again, Tokens) and again.emitted == [Emitted(KEY, 1, [6], "stop")]
    await setting.send(Ended(**ends(), key=KEY))
    await setting.send(Ask(**ends(), asked=(Question(KEY, 1),)))
    forgotten = await setting.receive()
    assert isinstance(forgotten, Failed) and forgotten.reason == "unknown"
    assert setting.told == []


@pytest.mark.parametrize(
    ("state", "killed"), [("prefill", True), (STATE_HANDING_OFF, False), (STATE_HANDED_OFF, False)]
)
async def test_an_end_ends_what_is_still_computed_here(setting: Setting, state: str, killed: bool) -> None:
    """The end of a sequence that is passed on was told by the other worker, and may be read before its `Accepted`."""
    await setting.hello()
    setting.ledger.begin(KEY, GATEWAY_EPOCH, 0, 1e12)
    setting.ledger.note(KEY, state)
    await setting.send(Ended(**ends(), key=KEY))
    await setting.send(Ping(sender=GATEWAY_EPOCH, receiver=WORKER_EPOCH, number=1))
    assert isinstance(await setting.receive(), Pong)
    assert setting.told == ([Kill(KEY, "ended")] if killed else []) and len(setting.ledger) == 0


async def test_what_is_landing_is_alive_though_the_engine_has_not_begun_it(setting: Setting) -> None:
    await setting.hello()
    setting.transfer.landing.add(KEY._replace(attempt=2))
    for attempt, state in ((2, "landing"), (1, None)):
        await setting.send(Ask(**ends(), asked=(Question(KEY._replace(attempt=attempt), 0),)))
        answer = await setting.receive()
        assert (answer.state if isinstance(answer, Alive) else None) == state


async def test_nothing_is_alive_that_waits_for_an_engine_that_hangs(setting: Setting) -> None:
    """Only a handed-off sequence needs no engine. What comes first shows what was not answered."""
    await setting.hello()
    for sample, state in ((0, "decode"), (1, STATE_HANDED_OFF)):
        setting.ledger.begin(KEY._replace(sample=sample), GATEWAY_EPOCH, 0, 1e12)
        setting.ledger.note(KEY._replace(sample=sample), state)
    setting.transfer.landing.add(KEY._replace(sample=2))
    began = time.monotonic() - 1000.0
    setting.life.status.activity = EngineActivity(1, began, "moving blocks", began)
    for sample in (0, 2, 1):
        await setting.send(Ask(**ends(), asked=(Question(KEY._replace(sample=sample), 0),)))
    alive = await setting.receive()
    assert isinstance(alive, Alive) and alive.state == STATE_HANDED_OFF
    await setting.send(Ping(sender=GATEWAY_EPOCH, receiver=WORKER_EPOCH, number=1))
    pong = await setting.receive()
    assert isinstance(pong, Pong) and pong.step_due_ms < 0
    setting.life.status.activity = None
    await setting.send(Ask(**ends(), asked=(Question(KEY, 0),)))
    assert isinstance(await setting.receive(), Alive)


async def test_every_cancel_is_answered_and_the_first_kills(setting: Setting) -> None:
    await setting.hello()
    second = KEY._replace(attempt=2)
    setting.ledger.begin(second, GATEWAY_EPOCH, 0, 1e12)
    for expected in ("cancelled", "unknown"):
        await setting.send(Cancel(**ends(), key=second))
        failed = await setting.receive()
        assert isinstance(failed, Failed) and failed.reason == expected
    assert setting.told == [Kill(second, "cancelled")]
    assert setting.transfer.cancelled == [second] * 2


async def test_the_engine_hears_once_of_a_cancel_of_what_is_landing(setting: Setting) -> None:
    await setting.hello()
    third = KEY._replace(sample=3)
    setting.transfer.landing.add(third)
    for _ in range(2):
        await setting.send(Cancel(**ends(), key=third))
        failed = await setting.receive()
        assert isinstance(failed, Failed) and failed.reason == "unknown"
    assert setting.told == [Kill(third, "cancelled")]


async def test_cancels_of_what_is_not_here_cost_the_engine_nothing(setting: Setting) -> None:
    """Without this a flood of them within one step would fill its inbox, and end the worker."""
    await setting.hello()
    for number in range(5):
        await setting.send(Cancel(**ends(), key=KEY._replace(request=f"gateway-1-{number}")))
        failed = await setting.receive()
        assert isinstance(failed, Failed) and failed.reason == "unknown"
    assert setting.told == [] and len(setting.transfer.cancelled) == 5


async def test_a_peer_of_nonsense_is_cut_off_and_another_is_heard(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    enemy = dealer(setting.context, setting.endpoint, KEYS)
    for _ in range(100):
        await asyncio.wait_for(enemy.send(b"\xc1nonsense"), DEADLINE_S)
    await setting.hello()
    while setting.connections.dropped < 100:  # the test's own time limit bounds it
        await asyncio.sleep(0)
    enemy.close(0)
    assert caplog.text.count("is cut off") == 1 and len(caplog.records) == 1


async def test_a_failure_comes_after_the_tokens_before_it(setting: Setting) -> None:
    await setting.hello()
    setting.ledger.begin(KEY, GATEWAY_EPOCH, 0, 1e12)
    setting.ledger.emit(Emitted(KEY, 0, [5]))
    setting.ledger.fail(KEY, AttemptFailure("engine", "non-finite logits"))
    await setting.connections._flush(GATEWAY_EPOCH)
    assert isinstance(await setting.receive(), Tokens)
    failed = await setting.receive()
    assert isinstance(failed, Failed) and failed.message == "non-finite logits" and not failed.retryable
    assert not list(setting.ledger.gateways())


async def test_a_silent_gateways_sequences_are_freed() -> None:
    setting = Setting(silence=0.0)
    try:
        await setting.hello()
        setting.ledger.begin(KEY, GATEWAY_EPOCH, 0, 1e12)
        stranger = AttemptKey("stranger-1", 0, 1)
        setting.ledger.begin(stranger, "never said Hello", 0, 1e12)
        setting.connections.watch()
        setting.connections.watch()  # a stranger's silence counts from the first look
        assert setting.told == [Kill(KEY, "gateway silent"), Kill(stranger, "gateway silent")]
        assert len(setting.ledger) == 0
    finally:
        await setting.close()


async def test_what_a_slow_gateway_is_owed_grows_together(setting: Setting) -> None:
    """Tokens that come one by one, while nothing is read, leave in few messages, each of which is handled soon."""
    await setting.hello()
    setting.ledger.begin(KEY, GATEWAY_EPOCH, 0, 1e12)
    tokens = list(range(PROMPT_TOKENS))
    for index in tokens:
        setting.connections.handle(
            Emit([Emitted(KEY, index, [index], "length" if index == PROMPT_TOKENS - 1 else None)])
        )
        await setting.connections._flush(GATEWAY_EPOCH)
    unknown = KEY._replace(request="gateway-1-2")
    await setting.connections._answer(GATEWAY_EPOCH, unknown, 0)  # what it was told waits as well, and is not lost
    got: list[int] = []
    failed: list[Failed] = []
    messages = 0
    while len(got) < PROMPT_TOKENS or not failed:
        message = await setting.receive()
        if isinstance(message, Failed):
            failed.append(message)
            continue
        assert (
            isinstance(message, Tokens) and sum(len(each.token_ids) for each in message.emitted) <= MAX_MESSAGE_TOKENS
        )
        messages += 1
        for each in message.emitted:
            assert each.index == len(got)
            got += each.token_ids
            assert (each.finish is not None) == (len(got) == PROMPT_TOKENS)
    assert got == tokens and [each.key for each in failed] == [unknown]
    assert messages < PROMPT_TOKENS / 4, f"{messages} messages"


class EndlessSocket:
    """Always has another message, so that reading it never suspends."""

    async def recv_multipart(self) -> list[bytes]:
        return [b"peer", b"noise"]


async def test_a_flood_leaves_other_tasks_their_turn() -> None:
    socket: Any = EndlessSocket()
    connections = GatewayConnections(life(5.0), socket, Landings())
    task = asyncio.create_task(connections.run(lambda piece: None))
    for turn in range(1, 4):
        await asyncio.sleep(0)
        assert 0 < connections.dropped <= turn * MESSAGES_PER_TURN
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
