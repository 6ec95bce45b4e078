"""n > 1: one job and one prompt for all samples, then each goes its own way to its own end."""

import asyncio
import time
from typing import Any

import pytest

from contracts.errors import StoreUnavailable
from contracts.ids import Ticket
from contracts.messages.gateway import Started
from contracts.messages.job import AnyJob
from gateway.errors import APIError
from gateway.openai.bodies.parsing import parse_chat
from gateway.requests import stream
from gateway.web import sse
from infra.redis.worker_load import WorkerLoad
from pricing.routes.route import Route
from tests.gateway.running import TEXT, Running, Serve, until

QUESTION: Any = [{"role": "user", "content": "Hi!"}]
TEXTS = {0: TEXT, 1: "Fine, thank you.", 2: "The lazy dog jumps over the fox."}


def tokens(running: Running, text: str) -> int:
    """Of this text and the end behind it."""
    return len(running.tokenizer.encode(text, special=False)) + 1


def loads(running: Running) -> list[int]:
    """What the gateway counts as its own, on each worker."""
    return [worker.own_sequences for worker in running.gateway.workers]


async def texts_of(running: Running, **more: Any) -> dict[int, str]:
    answer = await running.chat(n=3, **more)
    assert answer.status_code == 200, answer.text
    return {choice["index"]: choice["message"]["content"] for choice in answer.json()["choices"]}


async def test_three_samples_with_the_official_client(running: Running) -> None:
    running.texts = TEXTS
    answer = await running.openai.chat.completions.create(model="tiny", messages=QUESTION, n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert [choice.message.content for choice in answer.choices] == list(TEXTS.values())
    assert {choice.finish_reason for choice in answer.choices} == {"stop"}
    single = await running.openai.chat.completions.create(model="tiny", messages=QUESTION)
    assert answer.usage is not None and single.usage is not None
    assert answer.usage.prompt_tokens == single.usage.prompt_tokens, "the prompt counts once"
    assert answer.usage.completion_tokens == sum(tokens(running, text) for text in TEXTS.values())
    job = running.peer("prefill").jobs[0]
    assert (job.samples, job.attempt, len(running.peer("prefill").jobs)) == ((0, 1, 2), 1, 2)
    await running.idle()
    assert loads(running) == [0, 0]


async def test_a_stream_of_three_with_the_official_client(running: Running) -> None:
    running.texts = TEXTS
    coming = await running.openai.chat.completions.create(
        model="tiny", messages=QUESTION, n=3, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in coming]
    last = chunks.pop()
    assert last.choices == [] and last.usage is not None
    assert last.usage.completion_tokens == sum(tokens(running, text) for text in TEXTS.values())
    assert all(chunk.usage is None and len(chunk.choices) == 1 for chunk in chunks)
    choices = [chunk.choices[0] for chunk in chunks]
    for index, text in TEXTS.items():
        mine = [choice for choice in choices if choice.index == index]
        assert mine[0].delta.role == "assistant" and mine[0].delta.content == ""
        assert not any(choice.delta.role for choice in mine[1:])
        assert "".join(choice.delta.content or "" for choice in mine) == text
        assert [choice.finish_reason for choice in mine] == [None] * (len(mine) - 1) + ["stop"]
    order = [choice.index for choice in choices]
    assert order != sorted(order), "the choices' chunks interleave"


async def test_prompts_times_samples(running: Running) -> None:
    running.texts = TEXTS
    answer = (await running.post("/v1/completions", prompt=[[5, 6], [7]], n=3, max_tokens=200)).json()
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    assert [choice["text"] for choice in answer["choices"]] == [*TEXTS.values()] * 2
    assert answer["usage"]["prompt_tokens"] == 3
    first, second = running.peer("prefill").jobs
    assert first.request != second.request and first.samples == second.samples == (0, 1, 2)
    assert [record.samples for record in await running.finished(2)] == [3, 3]


async def test_samples_end_at_different_times_and_in_different_ways(running: Running) -> None:
    """By the end-of-text token, by the limit, and by a stop string; only the last is cancelled on its workers."""
    limit = tokens(running, TEXTS[2]) - 1  # cuts the longest
    running.texts = TEXTS
    answer = (await running.chat(n=3, max_tokens=limit, stop="dog jumps")).json()
    found = {choice["index"]: choice for choice in answer["choices"]}
    assert {index: choice["finish_reason"] for index, choice in found.items()} == {0: "length", 1: "stop", 2: "stop"}
    assert found[0]["message"]["content"] == running.tokenizer.decode(
        running.tokenizer.encode(TEXT, special=False)[:limit]
    )
    assert (found[1]["message"]["content"], found[2]["message"]["content"]) == (TEXTS[1], "The lazy ")
    await until(lambda: all(peer.cancels for peer in running.peers), "cancellations on both workers")
    await running.idle()
    assert {cancel.key.sample for peer in running.peers for cancel in peer.cancels} == {2}
    assert {end.key.sample for end in running.peer("decode").ends} == {0, 1}
    record = (await running.finished(1))[0]
    assert (record.outcome, record.reason, record.samples) == ("finished", "length", 3)


async def test_one_sample_is_retried_alone(serve: Serve) -> None:
    """Its decode worker loses it in the middle; the others never notice."""
    running = await serve("prefill")
    decode = await running.add("decode", stalls_at=9, only={1})
    task = asyncio.create_task(texts_of(running))
    await until(lambda: len(running.gateway.requests) == 1, "the others to end")
    (lost,) = running.gateway.requests._streams.values()
    await until(lambda: len(lost.sample.tokens) == 9, "nine tokens")
    del decode.holding[lost.sample.key]
    decode.faults.clear()
    assert await task == dict.fromkeys(range(3), TEXT)
    first, second = running.peer("prefill").jobs
    assert (first.samples, first.attempt) == ((0, 1, 2), 1)
    assert (second.samples, second.attempt) == ((1,), 2)
    assert second.prompt.token_ids[: second.prompt.prompt_tokens] == first.prompt.token_ids
    assert second.prompt.token_ids[second.prompt.prompt_tokens :] == running.answer(first, 1)[:9]
    record = (await running.finished(1))[0]
    assert (record.attempts, record.outcome, record.samples) == (2, "finished", 3)
    await running.idle()
    assert {cancel.key.sample for peer in running.peers for cancel in peer.cancels} == {1}
    assert loads(running) == [0, 0]


async def test_samples_that_fail_go_on_elsewhere_while_the_others_run(serve: Serve) -> None:
    running = await serve("prefill")
    running.texts = TEXTS
    await running.add("decode", fails="handoff", only={0, 2})
    good = await running.add("decode")
    good.load = WorkerLoad(running=50, blocks_total=1000)  # so that the other one is chosen first
    await good.beat()
    await running.gateway.discovery.poll()
    assert await texts_of(running) == TEXTS
    jobs = running.peer("prefill").jobs
    assert sorted(job.samples for job in jobs) == [(0,), (0, 1, 2), (2,)]
    assert [job.attempt for job in jobs] == [1, 2, 3], "each job has a number of its own"


async def test_one_sample_that_fails_for_good_fails_the_request(serve: Serve) -> None:
    running = await serve("prefill")
    decode = await running.add("decode", fails="broken weights", retryable=False, only={1}, step=60.0)
    answer = await running.chat(n=3)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "broken weights")
    await until(lambda: {cancel.key.sample for cancel in decode.cancels} >= {0, 2}, "cancellations of the others")
    await running.idle()
    (record,) = await running.finished(1)
    assert (record.outcome, record.reason, record.good) == ("failed", "broken weights", False)


async def test_a_job_that_is_not_taken_is_added_again_for_all_at_once(serve: Serve) -> None:
    running = await serve("decode")
    running.texts = TEXTS
    prefill = await running.add("prefill", deaf_to_jobs=1)
    assert await texts_of(running) == TEXTS
    assert [(job.attempt, job.samples) for job in prefill.jobs] == [(1, (0, 1, 2))] * 2


async def test_a_worker_that_has_left_costs_no_sample(serve: Serve) -> None:
    running = await serve("prefill", "decode", "prefill")
    running.texts = TEXTS
    await running.peers[0].leave()
    for _ in range(2):
        assert await texts_of(running) == TEXTS
    assert {job.samples for job in running.peers[2].jobs} == {(0, 1, 2)}
    await running.idle()
    assert loads(running) == [0, 0, 0]


async def test_a_worker_that_dies_while_its_job_is_added(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """The samples are on their way elsewhere when it turns out that the job could not be added."""
    running = await serve("prefill", "decode", "prefill")
    running.texts = TEXTS
    added: list[AnyJob] = []
    dispatch = running.gateway._dispatch
    really_add = dispatch._add_job

    async def add_job(job: AnyJob) -> Ticket:
        added.append(job)
        if len(added) > 1:
            return await really_add(job)
        await next(peer for peer in running.peers if peer.epoch == job.receiver).die()
        await until(lambda: len(added) == 4, "a job for each sample")
        raise StoreUnavailable("away")

    monkeypatch.setattr(dispatch, "_add_job", add_job)
    assert await texts_of(running) == TEXTS
    assert [job.samples for job in added] == [(0, 1, 2), (0,), (1,), (2,)]
    await running.idle()
    assert loads(running) == [0, 0]


async def test_a_job_of_the_past_that_is_taken_is_cancelled(serve: Serve) -> None:
    """For the samples that may have been its own: others still run under a lower number, which a Cancel would hit."""
    running = await serve("prefill")
    decode = await running.add("decode", stalls_at=3)
    task = asyncio.create_task(running.chat(n=3))
    await until(lambda: len(decode.holding) == 3, "all on the decode worker")
    job = running.peer("prefill").jobs[0]
    request = running.gateway.requests._requests[job.request]
    for _ in range(2):  # sample 1 has gone on to attempt 2, and from there to attempt 3
        request.begin([request.samples[1]], Route("", decode.epoch), time.monotonic())
    ends: dict[str, str] = {"sender": decode.epoch, "receiver": job.sender}
    await decode.say(job.sender, Started(**ends, request=job.request, attempt=2, samples=(1,)))
    await decode.say(job.sender, Started(**ends, request="forgotten", attempt=1, samples=(0, 1)))
    expected = {(job.request, 2, 1), ("forgotten", 1, 0), ("forgotten", 1, 1)}
    told: set[tuple[str, int, int]] = set()

    def all_told() -> bool:
        told.update((cancel.key.request, cancel.key.attempt, cancel.key.sample) for cancel in decode.cancels)
        return told >= expected

    await until(all_told, "the cancellations")
    # What the old attempt of sample 1 still says may be answered with a Cancel too; the siblings are not touched.
    assert {sample for name, _, sample in told if name == job.request} == {1}
    assert {key.sample for key in decode.holding} == {0, 2}
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_unread_tokens_are_bounded_for_each_sample(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MAX_UNREAD_TOKENS", 9)
    monkeypatch.setattr(sse, "MAX_UNREAD_S", 0.2)
    running = await serve("prefill", "decode")
    running.texts = {1: "dog"}
    assert tokens(running, "dog") < 9
    body = parse_chat(b'{"messages": [{"role": "user", "content": "Hi!"}], "stream": true, "n": 2}')
    admitted = await running.gateway.ready_admission().chat(body)
    (request,) = await running.gateway.holdings().open(admitted.prompts, time.monotonic(), streaming=True)
    await running.idle()
    first, second = request.streams
    read = second.unread()
    assert (read.text, read.finish) == ("dog", "stop")
    with pytest.raises(APIError, match="too slowly"):
        while True:
            first.unread()
    await until(lambda: running.peer("decode").cancels, "the cancellation")
    assert {cancel.key.sample for cancel in running.peer("decode").cancels} == {0}


async def test_the_largest_n_is_a_setting(serve: Serve) -> None:
    running = await serve("prefill", "decode", max_samples=2)
    assert len((await running.chat(n=2)).json()["choices"]) == 2
    refusal = await running.chat(n=3)
    error = refusal.json()["error"]
    assert (refusal.status_code, error["param"], error["code"]) == (400, "n", "invalid_value")
    assert "3" in error["message"] and "2" in error["message"]


async def test_every_sample_counts_as_an_answer_in_progress(serve: Serve) -> None:
    running = await serve("prefill", max_requests=4, max_waiting=0)
    await running.add("decode", stalls_at=2)
    held = asyncio.create_task(running.chat(n=3))
    await until(lambda: len(running.gateway.requests) == 3, "three samples")
    assert (await running.chat(n=2)).status_code == 429
    assert 'baton:requests_in_progress{model_name="tiny"} 1.0' in (await running.client.get("/metrics")).text
    assert (await running.chat(n=5)).status_code == 400, "no wait would help"
    held.cancel()
    await asyncio.gather(held, return_exceptions=True)
