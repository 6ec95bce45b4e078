"""Takes jobs from a real stream, and tells a gateway over real sockets which, and up to where the stream is empty."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec import structs

from contracts.ids import LAST_TICKET, AttemptKey
from contracts.messages.gateway import Alive, Ask, Ping, Pong, Question, Started
from contracts.messages.job import DecodeJob, Prompt
from contracts.messages.sampling import Limits, Sampling
from infra.network.sealing import Sealer
from infra.redis.clients import Store
from infra.redis.queue import JOB_PURPOSE, JobQueue, add_job
from infra.redis.records import WorkerLoad
from tests.worker.gateway_end import GATEWAY, WORKER, Setting
from worker.engine_status import PromptCounts
from worker.events import Submit
from worker.gateways.intake import Intake

SEALER = Sealer(b"0123456789abcdef", JOB_PURPOSE)
AHEAD = 2  # jobs that the worker takes before it can begin them


@pytest.fixture
async def setting() -> AsyncIterator[Setting]:
    setting = Setting(5.0, jobs_ahead=AHEAD)
    await setting.hello()
    yield setting
    await setting.close()


def job(number: int) -> DecodeJob:
    return DecodeJob(
        request=f"gateway-{number}",
        attempt=1,
        sender=GATEWAY,
        receiver=WORKER,
        prompt=Prompt([1, 2, number], 3),
        sampling=Sampling(7),
        limits=Limits(5),
        deadline=1e12,
        queued_at=1.0,
    )


async def pong(setting: Setting) -> Pong:
    await setting.send(Ping(sender=GATEWAY, receiver=WORKER, number=1))
    answer = await setting.receive()
    assert isinstance(answer, Pong)
    return answer


async def test_a_gateway_learns_which_jobs_are_taken_and_which_are_in_line(setting: Setting, store: Store) -> None:
    jobs = JobQueue(store, SEALER, WORKER)
    await jobs.open()
    status = setting.life.status
    status.shows(WorkerLoad(waiting=AHEAD), PromptCounts())  # which the engine has not begun
    intake = asyncio.create_task(Intake(setting.life, jobs, setting.connections).run())
    tickets = [await add_job(store, SEALER, job(number)) for number in range(5)]
    assert (await pong(setting)).taken < tickets[0], "all are in line"
    status.shows(WorkerLoad(), PromptCounts())
    said = [await setting.receive() for _ in tickets]
    assert [one.request for one in said if isinstance(one, Started)] == [f"gateway-{n}" for n in range(5)]
    while (heard := await pong(setting)).taken < tickets[4]:
        pass  # it passes a batch on before it says so
    assert heard.taken == tickets[4]
    assert [each for each in setting.told if isinstance(each, Submit)] == [Submit(job(n)) for n in range(5)]
    key = AttemptKey("gateway-1", 0, 1)
    await setting.send(Ask(sender=GATEWAY, receiver=WORKER, asked=(Question(key, 0),)))
    answer = await setting.receive()
    assert isinstance(answer, Alive) and answer.key == key, "what the engine has in its own queue is alive"
    status.draining = True
    await intake
    assert (await pong(setting)).taken == LAST_TICKET, "nothing is in line where nobody takes"


async def test_a_job_that_was_added_twice_begins_once(setting: Setting, store: Store) -> None:
    jobs = JobQueue(store, SEALER, WORKER)
    await jobs.open()
    for each in (job(1), job(1), structs.replace(job(1), attempt=2)):
        await add_job(store, SEALER, each)
    intake = asyncio.create_task(Intake(setting.life, jobs, setting.connections).run())
    said = [await setting.receive() for _ in range(3)]
    assert [one.attempt for one in said if isinstance(one, Started)] == [1, 1, 2]
    assert [each.job.attempt for each in setting.told if isinstance(each, Submit)] == [1, 2]
    setting.life.status.draining = True
    await intake
