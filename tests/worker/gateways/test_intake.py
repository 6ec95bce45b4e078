"""Takes jobs from a real stream: a gateway learns which were taken, and sends long prompts in pieces."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec import structs

from contracts.ids import LAST_TICKET, AttemptKey
from contracts.messages.gateway import (
    REASON_DRAINING,
    Alive,
    Ask,
    Cancel,
    Failed,
    FromWorker,
    Piece,
    Ping,
    Pong,
    Question,
    Started,
    Wanted,
)
from contracts.messages.job import DecodeJob, PrefillJob, Prompt
from contracts.messages.sampling import Limits, Sampling
from infra.network.sealing import Sealer
from infra.process.ending import end
from infra.redis.clients import Store
from infra.redis.queue import JOB_PURPOSE, JobQueue, add_job, stream_of
from infra.redis.worker_load import WorkerLoad
from tests.kvtransfer.pair import until
from tests.waiting import DEADLINE_S
from tests.worker.gateway_end import GATEWAY_EPOCH, WORKER_EPOCH, Setting
from tests.worker.gateways import test_bodies
from worker.engine_status import PromptCounts
from worker.events import Kill
from worker.gateways.bodies import REASON_NO_BODY
from worker.gateways.intake import Intake

HEAD = structs.replace(test_bodies.head(), sender=GATEWAY_EPOCH, receiver=WORKER_EPOCH)
WHOLE = structs.replace(test_bodies.WHOLE, sender=GATEWAY_EPOCH, receiver=WORKER_EPOCH)
SEALER = Sealer(b"0123456789abcdef", JOB_PURPOSE)
JOBS_AHEAD = 2  # jobs that the worker takes before it can begin them


@pytest.fixture
async def setting() -> AsyncIterator[Setting]:
    setting = Setting(5.0, jobs_ahead=JOBS_AHEAD)
    await setting.hello()
    yield setting
    await setting.close()


def job(number: int) -> DecodeJob:
    return DecodeJob(
        request=f"gateway-{number}",
        attempt=1,
        sender=GATEWAY_EPOCH,
        receiver=WORKER_EPOCH,
        prompt=Prompt([1, 2, number], 3),
        sampling=Sampling(7),
        limits=Limits(5),
        deadline=1e12,
        queued_at=1.0,
    )


async def pong(setting: Setting) -> Pong:
    await setting.send(Ping(sender=GATEWAY_EPOCH, receiver=WORKER_EPOCH, number=1))
    answer = await setting.receive()
    assert isinstance(answer, Pong)
    return answer


async def test_a_gateway_learns_which_jobs_are_taken_and_which_are_in_line(setting: Setting, store: Store) -> None:
    jobs = JobQueue(store, SEALER, WORKER_EPOCH)
    await jobs.open()
    status = setting.life.status
    status.shows(WorkerLoad(waiting=JOBS_AHEAD), PromptCounts())  # which the engine has not begun
    intake = asyncio.create_task(Intake(setting.life, jobs, setting.connections, setting.transfer).run())
    tickets = [await add_job(store, SEALER, job(number)) for number in range(5)]
    assert (await pong(setting)).taken < tickets[0], "all are in line"
    status.shows(WorkerLoad(), PromptCounts())
    said = [await setting.receive() for _ in tickets]
    assert [one.request for one in said if isinstance(one, Started)] == [f"gateway-{n}" for n in range(5)]
    while (heard := await pong(setting)).taken < tickets[4]:
        pass  # it passes a batch on before it says so
    assert heard.taken == tickets[4]
    assert [each for each in setting.told if isinstance(each, PrefillJob | DecodeJob)] == [job(n) for n in range(5)]
    key = AttemptKey("gateway-1", 0, 1)
    await setting.send(Ask(sender=GATEWAY_EPOCH, receiver=WORKER_EPOCH, asked=(Question(key, 0),)))
    answer = await setting.receive()
    assert isinstance(answer, Alive) and answer.key == key, "what the engine has in its own queue is alive"
    status.draining = True
    await intake
    assert (await pong(setting)).taken == LAST_TICKET, "nothing is in line where nobody takes"


async def test_a_job_that_was_added_twice_begins_once(setting: Setting, store: Store) -> None:
    jobs = JobQueue(store, SEALER, WORKER_EPOCH)
    await jobs.open()
    for each in (job(1), job(1), structs.replace(job(1), attempt=2)):
        await add_job(store, SEALER, each)
    intake = asyncio.create_task(Intake(setting.life, jobs, setting.connections, setting.transfer).run())
    said = [await setting.receive() for _ in range(3)]
    assert [one.attempt for one in said if isinstance(one, Started)] == [1, 1, 2]
    assert [each.attempt for each in setting.told if isinstance(each, PrefillJob | DecodeJob)] == [1, 2]
    assert AttemptKey("gateway-1", 0, 1) in setting.transfer.cancelled, "the lower attempt may be landing here"
    setting.life.status.draining = True
    await intake


@pytest.fixture
async def collecting(store: Store) -> AsyncIterator[tuple[Setting, Intake]]:
    """A worker that takes jobs, and a gateway that it is connected to."""
    setting = Setting(5.0)
    await setting.hello()
    jobs = JobQueue(store, SEALER, WORKER_EPOCH)
    await jobs.open()
    intake = Intake(setting.life, jobs, setting.connections, setting.transfer)
    setting.take_piece = intake.take
    tasks = [asyncio.create_task(work) for work in (intake.run(), intake.collect())]
    yield setting, intake
    await end(tasks)
    await setting.close()


def piece(first: int, behind: int) -> Piece:
    """Returns some of the prompt, as the gateway sends it."""
    return structs.replace(test_bodies.piece(first, behind), sender=GATEWAY_EPOCH, receiver=WORKER_EPOCH)


async def said(setting: Setting, kind: type[FromWorker]) -> Any:
    """Returns the next message of this kind."""
    while not isinstance(message := await setting.receive(), kind):
        pass
    return message


async def posted(setting: Setting) -> list[Any]:
    """Returns what was posted to the engine thread, as soon as there is something."""
    async with asyncio.timeout(DEADLINE_S):
        while not (told := setting.told):
            await asyncio.sleep(0.005)
    return told


async def test_a_prompt_comes_in_pieces_and_redis_has_none_of_it(
    collecting: tuple[Setting, Intake], store: Store
) -> None:
    setting, _ = collecting
    await add_job(store, SEALER, HEAD)
    assert isinstance(await setting.receive(), Started), "it is taken, though its prompt is not here"
    assert (await said(setting, Wanted)).first == 0
    assert setting.told == []
    await setting.send(piece(0, 5))
    wanted = await said(setting, Wanted)
    assert (wanted.request, wanted.attempt, wanted.samples, wanted.first) == ("g-1", 1, (0, 1), 5)
    await setting.send(piece(5, 8))
    assert await posted(setting) == [WHOLE]
    assert setting.life.status.posted.tokens == 8
    assert await store.xlen(stream_of(WORKER_EPOCH)) == 0


async def test_a_lost_piece_is_asked_for_again(collecting: tuple[Setting, Intake], store: Store) -> None:
    setting, _ = collecting
    await add_job(store, SEALER, HEAD)
    assert [(await said(setting, Wanted)).first for _ in range(3)] == [0, 0, 0]
    await setting.send(piece(0, 8))
    assert await posted(setting) == [WHOLE]


async def test_a_job_that_is_added_again_is_started_again_and_begins_once(
    collecting: tuple[Setting, Intake], store: Store
) -> None:
    setting, intake = collecting
    await add_job(store, SEALER, HEAD)
    await said(setting, Wanted)
    await add_job(store, SEALER, HEAD)
    assert isinstance(await said(setting, Started), Started)
    await setting.send(piece(0, 8))
    assert await posted(setting) == [WHOLE]
    await add_job(store, SEALER, HEAD)
    await said(setting, Started)
    assert setting.told == [] and len(intake) == 0


async def test_what_is_cancelled_before_its_prompt_has_come_does_not_begin(
    collecting: tuple[Setting, Intake], store: Store
) -> None:
    setting, intake = collecting
    await add_job(store, SEALER, HEAD)
    await said(setting, Wanted)
    await setting.send(Cancel(sender=GATEWAY_EPOCH, receiver=WORKER_EPOCH, key=AttemptKey("g-1", 0, 1)))
    await said(setting, Failed)
    await setting.send(piece(0, 8))
    told = [event for event in await posted(setting) + setting.told if not isinstance(event, Kill)]
    while not told:
        told = [event for event in await posted(setting) if not isinstance(event, Kill)]
    assert told == [structs.replace(WHOLE, samples=(1,))], "the other sample goes on"
    await add_job(store, SEALER, structs.replace(HEAD, request="g-2", samples=(0,)))
    await said(setting, Wanted)
    await setting.send(Cancel(sender=GATEWAY_EPOCH, receiver=WORKER_EPOCH, key=AttemptKey("g-2", 0, 1)))
    await said(setting, Failed)
    await until(lambda: len(intake) == 0, "the job stays")


async def test_a_gateway_that_never_answers_fails_its_jobs(
    collecting: tuple[Setting, Intake], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting, intake = collecting
    monkeypatch.setattr("worker.gateways.bodies.GIVE_UP_S", 0.3)
    await add_job(store, SEALER, HEAD)
    failed = await said(setting, Failed)
    assert (failed.key.request, failed.reason, failed.retryable) == ("g-1", REASON_NO_BODY, True)
    assert setting.told == [] and len(intake) == 0


async def test_another_prompt_than_was_promised_fails(collecting: tuple[Setting, Intake], store: Store) -> None:
    setting, _ = collecting
    await add_job(store, SEALER, HEAD)
    await said(setting, Wanted)
    bad = structs.replace(piece(0, 8), ids=piece(0, 8).ids[:-4] + b"\0\0\0\0")
    await setting.send(bad)
    assert [(await said(setting, Failed)).reason for _ in HEAD.samples] == [REASON_NO_BODY, REASON_NO_BODY]
    assert setting.told == []


async def test_a_gateway_that_died_holds_nothing_here(collecting: tuple[Setting, Intake], store: Store) -> None:
    setting, intake = collecting
    await add_job(store, SEALER, HEAD)
    await said(setting, Wanted)
    setting.ledger.forget(setting.ledger.of_gateway(GATEWAY_EPOCH))  # as its silence does
    await until(lambda: len(intake) == 0, "the job stays")
    assert setting.told == []


async def test_a_worker_that_leaves_says_that_its_jobs_did_not_begin(
    collecting: tuple[Setting, Intake], store: Store
) -> None:
    setting, intake = collecting
    await add_job(store, SEALER, HEAD)
    await said(setting, Wanted)
    intake.leave()
    failed = await said(setting, Failed)
    assert failed.reason == REASON_DRAINING and failed.retryable
