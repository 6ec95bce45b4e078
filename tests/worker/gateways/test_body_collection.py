"""A worker asks a gateway for prompts over real sockets: jobs reach the engine thread whole, once, or fail."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec import structs

from contracts.ids import AttemptKey
from contracts.messages.gateway import REASON_DRAINING, Cancel, Failed, FromWorker, Piece, Started, Wanted
from infra.network.sealing import Sealer
from infra.process.ending import end
from infra.redis.clients import Store
from infra.redis.queue import JOB_PURPOSE, JobQueue, add_job, stream_of
from tests.worker.gateway_end import GATEWAY, WORKER, Setting
from tests.worker.gateways import test_bodies
from worker.events import Kill, Submit
from worker.gateways.bodies import REASON_NO_BODY
from worker.gateways.intake import Intake

SEALER = Sealer(b"0123456789abcdef", JOB_PURPOSE)
HEAD = structs.replace(test_bodies.head(), sender=GATEWAY, receiver=WORKER)
WHOLE = structs.replace(test_bodies.WHOLE, sender=GATEWAY, receiver=WORKER)


@pytest.fixture
async def setting(store: Store) -> AsyncIterator[Setting]:
    """A worker that takes jobs, and a gateway that it is connected to."""
    setting = Setting(5.0)
    await setting.hello()
    jobs = JobQueue(store, SEALER, WORKER)
    await jobs.open()
    works = Intake(setting.life, jobs, setting.connections).run(), setting.connections.bodies.run()
    tasks = [asyncio.create_task(work) for work in works]
    yield setting
    await end(tasks)
    await setting.close()


def piece(first: int, behind: int) -> Piece:
    """Returns some of the prompt, as the gateway sends it."""
    return structs.replace(test_bodies.piece(first, behind), sender=GATEWAY, receiver=WORKER)


async def said(setting: Setting, kind: type[FromWorker]) -> Any:
    """Returns the next message of this kind."""
    while not isinstance(message := await setting.receive(), kind):
        pass
    return message


async def posted(setting: Setting) -> list[Any]:
    """Returns what was posted to the engine thread, as soon as there is something."""
    async with asyncio.timeout(5):
        while not (told := setting.told):
            await asyncio.sleep(0.005)
    return told


async def test_a_prompt_comes_in_pieces_and_redis_has_none_of_it(setting: Setting, store: Store) -> None:
    await add_job(store, SEALER, HEAD)
    assert isinstance(await setting.receive(), Started), "it is taken, though its prompt is not here"
    assert (await said(setting, Wanted)).first == 0
    assert setting.told == []
    await setting.send(piece(0, 5))
    wanted = await said(setting, Wanted)
    assert (wanted.request, wanted.attempt, wanted.samples, wanted.first) == ("g-1", 1, (0, 1), 5)
    await setting.send(piece(5, 8))
    assert await posted(setting) == [Submit(WHOLE)]
    assert setting.life.status.posted.tokens == 8
    assert await store.xlen(stream_of(WORKER)) == 0


async def test_a_lost_piece_is_asked_for_again(setting: Setting, store: Store) -> None:
    await add_job(store, SEALER, HEAD)
    assert [(await said(setting, Wanted)).first for _ in range(3)] == [0, 0, 0]
    await setting.send(piece(0, 8))
    assert await posted(setting) == [Submit(WHOLE)]


async def test_a_job_that_is_added_again_is_started_again_and_begins_once(setting: Setting, store: Store) -> None:
    await add_job(store, SEALER, HEAD)
    await said(setting, Wanted)
    await add_job(store, SEALER, HEAD)
    assert isinstance(await said(setting, Started), Started)
    await setting.send(piece(0, 8))
    assert await posted(setting) == [Submit(WHOLE)]
    await add_job(store, SEALER, HEAD)
    await said(setting, Started)
    assert setting.told == [] and len(setting.connections.bodies) == 0


async def test_what_is_cancelled_before_its_prompt_has_come_does_not_begin(setting: Setting, store: Store) -> None:
    await add_job(store, SEALER, HEAD)
    await said(setting, Wanted)
    await setting.send(Cancel(sender=GATEWAY, receiver=WORKER, key=AttemptKey("g-1", 0, 1)))
    await said(setting, Failed)
    await setting.send(piece(0, 8))
    told = [event for event in await posted(setting) + setting.told if not isinstance(event, Kill)]
    while not told:
        told = [event for event in await posted(setting) if not isinstance(event, Kill)]
    assert told == [Submit(structs.replace(WHOLE, samples=(1,)))], "the other sample goes on"
    await add_job(store, SEALER, structs.replace(HEAD, request="g-2", samples=(0,)))
    await said(setting, Wanted)
    await setting.send(Cancel(sender=GATEWAY, receiver=WORKER, key=AttemptKey("g-2", 0, 1)))
    await said(setting, Failed)
    async with asyncio.timeout(5):
        while len(setting.connections.bodies):
            await asyncio.sleep(0.005)


async def test_a_gateway_that_never_answers_fails_its_jobs(
    setting: Setting, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.gateways.bodies.GIVE_UP_S", 0.3)
    await add_job(store, SEALER, HEAD)
    failed = await said(setting, Failed)
    assert (failed.key.request, failed.reason, failed.retryable) == ("g-1", REASON_NO_BODY, True)
    assert setting.told == [] and len(setting.connections.bodies) == 0


async def test_another_prompt_than_was_promised_fails(setting: Setting, store: Store) -> None:
    await add_job(store, SEALER, HEAD)
    await said(setting, Wanted)
    bad = structs.replace(piece(0, 8), ids=piece(0, 8).ids[:-4] + b"\0\0\0\0")
    await setting.send(bad)
    assert [(await said(setting, Failed)).reason for _ in HEAD.samples] == [REASON_NO_BODY, REASON_NO_BODY]
    assert setting.told == []


async def test_a_gateway_that_died_holds_nothing_here(setting: Setting, store: Store) -> None:
    await add_job(store, SEALER, HEAD)
    await said(setting, Wanted)
    setting.ledger.forget(setting.ledger.of_gateway(GATEWAY))  # as its silence does
    async with asyncio.timeout(5):
        while len(setting.connections.bodies):
            await asyncio.sleep(0.005)
    assert setting.told == []


async def test_a_worker_that_leaves_says_that_its_jobs_did_not_begin(setting: Setting, store: Store) -> None:
    await add_job(store, SEALER, HEAD)
    await said(setting, Wanted)
    setting.connections.bodies.leave()
    failed = await said(setting, Failed)
    assert failed.reason == REASON_DRAINING and failed.retryable
