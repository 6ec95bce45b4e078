"""Long prompts reach workers by the gateway's connection: what Redis has of them is their length and digest."""

import asyncio
from typing import Any

import pytest

from contracts.ids import AttemptKey
from contracts.messages.gateway import Wanted
from contracts.messages.packed_ids import unpacked
from infra.redis.queue import stream_of
from tests.gateway.peer import Peer
from tests.gateway.requests.test_faults import REQUEST_COUNT, content, many
from tests.gateway.running import TEXT, Serve, until
from tests.waiting import DEADLINE_S


def brought(peer: Peer) -> list[int]:
    """Returns the ids that a peer was brought for its first job."""
    first = peer.jobs[0]
    return [one for piece in peer.pieces if piece.request == first.request for one in unpacked(piece.ids)]


async def test_a_prompt_goes_by_the_connection(serve: Serve) -> None:
    running = await serve("prefill", "decode", link_prompt=2)
    assert await many(running) == {TEXT: REQUEST_COUNT}
    prefill = running.peer("prefill")
    assert all(job.body is not None and not job.prompt.token_ids for job in prefill.jobs)
    ids = brought(prefill)
    assert len(ids) == prefill.jobs[0].tokens > 2
    assert running.tokenizer.encode("Hi!", special=False)[0] in ids


async def test_a_shorter_prompt_goes_with_its_job(serve: Serve) -> None:
    running = await serve("prefill", "decode", link_prompt=1000)
    assert await content(running) == TEXT
    prefill = running.peer("prefill")
    assert prefill.jobs[0].body is None and prefill.jobs[0].prompt.token_ids and prefill.pieces == []


async def test_a_prompt_of_several_pieces(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.requests.request.IDS_PER_PIECE", 3)
    running = await serve("prefill", "decode", link_prompt=2)
    assert await content(running) == TEXT
    prefill = running.peer("prefill")
    assert len(prefill.pieces) == -(-prefill.jobs[0].tokens // 3) > 1


async def test_samples_share_a_prompt_that_comes_once(serve: Serve) -> None:
    running = await serve("prefill", "decode", link_prompt=2)
    answer = await running.chat(n=3)
    assert [choice["message"]["content"] for choice in answer.json()["choices"]] == [TEXT] * 3
    prefill = running.peer("prefill")
    assert len(prefill.jobs) == 1 and len(prefill.pieces) == 1


async def test_a_worker_that_does_not_get_the_prompt_leaves_it_to_another(serve: Serve) -> None:
    running = await serve("decode", link_prompt=2)
    bad = await running.add("prefill", loses_bodies=True)
    await running.add("prefill")
    assert await many(running) == {TEXT: REQUEST_COUNT}
    assert bad.jobs and {record.attempts for record in await running.finished(REQUEST_COUNT)} == {1, 2}


async def test_a_worker_that_dies_over_the_prompt_leaves_it_to_another(serve: Serve) -> None:
    running = await serve("decode", link_prompt=2)
    dying = await running.add("prefill", deaf_to_pieces=True)
    task = asyncio.create_task(content(running))
    await until(lambda: dying.pieces, "the first worker to be brought the prompt")
    await running.add("prefill")
    await dying.die()
    assert await task == TEXT
    assert [record.attempts for record in await running.finished(1)] == [2]


async def test_a_job_whose_start_was_not_heard_of_is_added_again_and_brought_once(serve: Serve) -> None:
    running = await serve("decode", link_prompt=2)
    prefill = await running.add("prefill", deaf_to_jobs=1)
    assert await content(running) == TEXT
    assert [job.attempt for job in prefill.jobs] == [1, 1] and prefill.jobs[0].body == prefill.jobs[1].body
    assert len(prefill.pieces) == 1


async def test_a_prompt_that_nobody_wants_any_more_is_cancelled(serve: Serve) -> None:
    running = await serve("prefill", "decode", link_prompt=2)
    prefill, gateway = running.peer("prefill"), running.gateway._epoch
    ends: dict[str, Any] = {"sender": prefill.epoch, "receiver": gateway}
    await prefill.say(gateway, Wanted(**ends, request="gone-1", attempt=3, samples=(0, 1), first=0))
    await until(lambda: len(prefill.cancels) >= 2, "an answer")
    assert {one.key for one in prefill.cancels} == {AttemptKey("gone-1", number, 3) for number in (0, 1)}
    assert prefill.pieces == []


async def test_redis_holds_no_ids(serve: Serve) -> None:
    running = await serve(link_prompt=200)
    decode = await running.add("decode", takes_nothing=True)
    asked = [
        asyncio.create_task(running.post("/v1/completions", prompt=[400] * tokens, max_tokens=4))
        for tokens in (199, 200)
    ]
    async with asyncio.timeout(DEADLINE_S):
        entries: Any = ()
        while len(entries) < 2:
            await asyncio.sleep(0.005)
            entries = await running.store.xrange(stream_of(decode.epoch))
    without, with_ids = sorted(len(fields[b"body"]) for _, fields in entries)
    assert without < 500 < 3 * 199 < with_ids
    decode.faults["takes_nothing"] = False
    assert [one.status_code for one in await asyncio.gather(*asked)] == [200, 200]
