"""Job streams keep protocol rules 8 and 9 against a real server."""

from typing import Any

import pytest

from contracts.errors import QueueClosed
from contracts.messages.job import PrefillJob, Prompt
from contracts.messages.sampling import Limits, Sampling
from contracts.messages.wire import encode
from infra.network.sealing import Sealer
from infra.redis.clients import Store
from infra.redis.queue import CONSUMER_GROUP, JOB_PURPOSE, TTL_MS, JobQueue, add_job, stream_of

SEALER = Sealer(b"0123456789abcdef", JOB_PURPOSE)


@pytest.fixture
async def queue(store: Store) -> JobQueue:
    queue = JobQueue(store, SEALER, "worker")
    await queue.open()
    return queue


def job(number: int, worker: str = "worker") -> PrefillJob:
    return PrefillJob(
        request=f"gateway-{number}",
        attempt=1,
        sender="gateway",
        receiver=worker,
        prompt=Prompt([1, 2, number], 3),
        sampling=Sampling(7),
        limits=Limits(5),
        deadline=10.0,
        queued_at=1.0,
        decode_epoch="decode",
        decode_address="tcp://127.0.0.1:1",
    )


async def test_jobs_come_out_in_order_and_leave_the_stream(store: Store, queue: JobQueue) -> None:
    for number in range(5):
        await add_job(store, SEALER, job(number))
    assert await queue.waiting() == 5
    assert await queue.take(3, 100) == [job(0), job(1), job(2)]
    assert await queue.take(3, 100) == [job(3), job(4)]
    assert await queue.waiting() == 0
    assert (await store.xpending(stream_of("worker"), "worker"))["pending"] == 0


async def test_a_worker_that_is_gone_takes_no_jobs(store: Store) -> None:
    with pytest.raises(QueueClosed, match="worker"):
        await add_job(store, SEALER, job(1))
    assert not await store.exists(stream_of("worker")), "no stream without group or time to live is made"
    queue = JobQueue(store, SEALER, "worker")
    await queue.open()
    await queue.close()
    with pytest.raises(QueueClosed):
        await add_job(store, SEALER, job(1))


async def test_a_ticket_tells_when_its_job_is_not_in_line_any_more(store: Store, queue: JobQueue) -> None:
    tickets = [await add_job(store, SEALER, job(number)) for number in range(3)]
    assert queue.taken < tickets[0] < tickets[1] < tickets[2]
    await queue.take(2, 100)
    assert queue.taken == tickets[1]
    await store.delete(stream_of("worker"))
    await queue.take(2, 100)
    assert queue.taken > tickets[2], "it is lost with the stream"
    later = await add_job(store, SEALER, job(4))
    assert await queue.take(2, 100) == [job(4)] and queue.taken == later
    await queue.close()
    assert queue.taken > later


async def test_jobs_whose_delivery_went_unheard_are_taken_once(store: Store, queue: JobQueue) -> None:
    await add_job(store, SEALER, job(1))
    await store.xreadgroup(
        CONSUMER_GROUP, CONSUMER_GROUP, {stream_of("worker"): ">"}
    )  # as if the answer had been lost on its way
    assert await queue.take(9, 10) == [job(1)]
    assert await queue.waiting() == 0
    await add_job(store, SEALER, job(2))
    await store.xreadgroup(CONSUMER_GROUP, CONSUMER_GROUP, {stream_of("worker"): ">"})
    await add_job(store, SEALER, job(3))
    assert await queue.take(9, 10) == [job(3)], "gateways learn by the ticket that job 2 is not in line any more"
    assert await queue.take(9, 10) == [], "so they have added it again"
    assert await queue.waiting() == 0


async def test_a_stream_expires_with_its_worker(store: Store, queue: JobQueue) -> None:
    assert 0 < await store.pttl(stream_of("worker")) <= TTL_MS
    await queue.open()  # again: what is there stays


async def test_a_stream_made_anew_takes_jobs_of_a_server_whose_clock_is_behind(store: Store) -> None:
    """A server that has lost its memory may be another machine: its tickets may be lower than those that were seen."""
    queue, key = JobQueue(store, SEALER, "worker"), stream_of("worker")
    await queue.open()
    ahead = b"9999999999999-0"  # ms: the clock of the first server
    await store.xadd(key, {b"body": SEALER.seal(encode(job(1)), key)}, id=ahead)
    assert await queue.take(9, 100) == [job(1)]
    await store.delete(key)
    assert await queue.take(9, 100) == []
    await add_job(store, SEALER, job(2))
    assert await queue.take(9, 100) == [job(2)]


async def test_what_is_not_a_job_of_ours_is_dropped_and_counted(store: Store, queue: JobQueue) -> None:
    other = Sealer(b"another secret of a stranger", JOB_PURPOSE)
    await add_job(store, other, job(1))
    await store.xadd(stream_of("worker"), {b"body": b"junk"})
    await store.xadd(stream_of("worker"), {b"something": b"else"})
    moved = SEALER.seal(b"\x80", stream_of("another worker"))
    await store.xadd(stream_of("worker"), {b"body": moved})
    await add_job(store, SEALER, job(2))
    assert await queue.take(9, 100) == [job(2)]
    assert queue.dropped == 4


async def test_a_body_does_not_show_its_tokens(store: Store, queue: JobQueue) -> None:
    await add_job(store, SEALER, job(1))
    entries: Any = await store.xrange(stream_of("worker"))
    ((_, fields),) = entries
    assert b"gateway-1" not in fields[b"body"] and bytes([1, 2, 1]) not in fields[b"body"]
