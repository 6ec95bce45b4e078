"""Workers that repeat, reorder, lose, fail, stay silent or die; clients that go away. Every request has one end."""

import asyncio
import json
import time
from collections import Counter
from typing import Any

import pytest

from contracts.ids import AttemptKey
from contracts.messages.gateway import Emitted, Tokens
from gateway.requests import sample
from tests.gateway.running import TEXT, Running, Serve, until
from tests.waiting import DEADLINE_S

REQUEST_COUNT = 8


async def content(running: Running, **more: Any) -> str:
    answer = await running.chat(**more)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def open_streams(running: Running) -> list[Any]:
    return list(running.gateway.requests._streams.values())


async def many(running: Running, count: int = REQUEST_COUNT) -> Counter[str]:
    return Counter(await asyncio.gather(*(content(running) for _ in range(count))))


async def test_lost_repeated_and_reordered_tokens(serve: Serve) -> None:
    running = await serve("prefill")
    decode = await running.add("decode", garbles=True)
    assert await many(running) == {TEXT: REQUEST_COUNT}
    assert decode.asks, "what was lost was asked for"
    assert {record.attempts for record in await running.finished(REQUEST_COUNT)} == {1}


async def test_a_worker_that_fails_in_a_way_that_another_may_not(serve: Serve) -> None:
    running = await serve("prefill")
    bad = await running.add("decode", fails="handoff")
    await running.add("decode")
    assert await many(running) == {TEXT: REQUEST_COUNT}
    assert bad.jobs == []
    assert {record.attempts for record in await running.finished(REQUEST_COUNT)} == {1, 2}


async def test_a_retry_goes_on_behind_what_was_delivered(serve: Serve) -> None:
    running = await serve("prefill")
    await running.add("decode", stalls_at=9)
    task = asyncio.create_task(content(running))
    await until(lambda: any(len(one.sample.tokens) == 9 for one in open_streams(running)), "nine tokens")
    second = await running.add("decode")
    await running.peers[1].die()
    assert await task == TEXT
    job = running.peer("prefill").jobs[-1]
    assert job.attempt == 2 and len(job.prompt.token_ids) == job.prompt.prompt_tokens + 9
    await until(lambda: second.ends, "the acknowledgement of the end")
    record = (await running.finished(1))[0]
    assert (record.attempts, record.decode_worker) == (2, second.epoch)


async def test_a_failure_that_is_final_reaches_the_client(serve: Serve) -> None:
    running = await serve("prefill")
    await running.add("decode", fails="broken weights", retryable=False)
    for more in ({}, {"stream": True}):
        answer = await running.chat(**more)
        if answer.status_code == 200:  # the first token had left
            data = answer.text.strip().split("\n\n")
            assert data[-1] == "data: [DONE]"
            error = json.loads(data[-2].removeprefix("data: "))["error"]
        else:
            assert answer.status_code == 500
            error = answer.json()["error"]
        assert error["code"] == "broken weights" and "a sentence" in error["message"]
    assert [record.outcome for record in await running.finished(2)] == ["failed", "failed"]
    await running.idle()


async def test_a_failure_before_the_first_token_has_a_true_status(serve: Serve) -> None:
    running = await serve("decode")
    await running.add("prefill", fails="capacity", retryable=False)
    answer = await running.chat(stream=True)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "capacity")


async def test_attempts_are_bounded(serve: Serve) -> None:
    running = await serve("decode")
    prefill = await running.add("prefill", fails="handoff")
    answer = await running.chat()
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "retries_failed")
    assert [job.attempt for job in prefill.jobs] == list(range(1, sample.MAX_RETRIES + 2))


@pytest.mark.parametrize("reason", ["draining", "grant_deadline"])
async def test_a_planned_end_or_a_lack_of_room_costs_no_attempt(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    monkeypatch.setattr(sample, "MAX_PLANNED_PAUSE_S", 0.0)
    running = await serve("decode")
    prefill = await running.add("prefill", fails=reason)
    task = asyncio.create_task(content(running))
    await until(lambda: len(prefill.jobs) > sample.MAX_RETRIES + 1, "more attempts than may fail")
    del prefill.faults["fails"]
    assert await task == TEXT


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_worker_that_dies(serve: Serve, role: Any) -> None:
    """All its requests are finished by the others, to the token."""
    running = await serve("prefill", "decode", "prefill", "decode")
    for peer in running.peers:
        peer.faults["step"] = 0.02
    tasks = [asyncio.create_task(content(running)) for _ in range(REQUEST_COUNT)]
    victim = running.peer(role)
    await until(lambda: victim.holding, "the victim to have work")
    if role == "prefill":
        victim.faults["mute"] = True
        tasks += [asyncio.create_task(content(running)) for _ in range(REQUEST_COUNT)]
        await until(lambda: len(victim.jobs) >= REQUEST_COUNT // 2 + 2, "the victim to have jobs")
    await victim.die()
    began = time.monotonic()
    assert Counter(await asyncio.gather(*tasks)) == {TEXT: len(tasks)}
    assert time.monotonic() - began < 8
    assert running.gateway.workers.get(victim.epoch) is None


async def test_a_worker_that_answers_no_ping(serve: Serve) -> None:
    running = await serve("prefill", "decode")
    silent = await running.add("decode")
    silent.faults |= {"frozen": True, "mute": True}
    assert await many(running) == {TEXT: REQUEST_COUNT}
    assert running.gateway.workers.get(silent.epoch) is None


async def test_a_worker_that_stalls_and_is_asked(serve: Serve) -> None:
    """It is alive and says so; the request waits, and is not tried elsewhere."""
    running = await serve("prefill")
    decode = await running.add("decode", stalls_at=5)
    task = asyncio.create_task(running.chat())
    await until(lambda: len(decode.asks) >= 1, "a question")
    assert decode.asks[0].asked[0].next_index == 5
    assert len(running.gateway.requests) == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await running.idle()


async def test_a_job_in_line_is_neither_added_again_nor_given_up(serve: Serve) -> None:
    """A worker that lives and has not begun it has not failed, however long that takes."""
    running = await serve("decode")
    prefill = await running.add("prefill", takes_nothing=True)
    tasks = [asyncio.create_task(content(running)) for _ in range(REQUEST_COUNT)]

    def in_line() -> int:
        attempts = [one.sample.attempt for one in open_streams(running)]
        return sum(attempt is not None and attempt.adds > 0 for attempt in attempts)

    await until(lambda: in_line() == REQUEST_COUNT, "all jobs on the stream")
    for seconds in (2.0, 30.0, 500.0):
        running.gateway.requests.look(time.monotonic() + seconds)
    await until(lambda: not running.gateway.requests._tasks, "what the gateway does about it")
    assert await running.jobs() == REQUEST_COUNT
    assert sorted(record.ahead for record in await running.gateway.requests.records()) == list(range(REQUEST_COUNT))
    prefill.faults.clear()
    assert Counter(await asyncio.gather(*tasks)) == {TEXT: REQUEST_COUNT}
    assert {record.attempts for record in await running.finished(REQUEST_COUNT)} == {1}
    assert len(prefill.jobs) == REQUEST_COUNT


async def test_silence_ends_an_attempt(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "GIVE_UP_AFTER_S", 1.0)
    running = await serve("prefill")
    await running.add("decode", stalls_at=4, deaf_to_ask=True)
    await running.add("decode")
    assert await many(running, 4) == {TEXT: 4}
    assert {record.attempts for record in await running.finished(4)} == {1, 2}


async def test_the_deadline(serve: Serve) -> None:
    running = await serve("prefill", request_timeout=0.5)
    decode = await running.add("decode", stalls_at=3)
    answer = await running.chat()
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert answer.headers["x-should-retry"] == "false"
    await until(lambda: decode.cancels, "the cancellation")
    assert (await running.finished(1))[0].reason == "deadline_exceeded"


@pytest.mark.parametrize("streaming", [True, False])
async def test_clients_that_go_away(serve: Serve, streaming: bool) -> None:
    """A hundred at once: every one is cancelled on both workers, and nothing stays behind."""
    running = await serve("prefill")
    decode = await running.add("decode", step=60.0)  # no token, so only the gateway can tell it
    count = 100

    async def leave_midway() -> None:
        body = {"messages": [{"role": "user", "content": "Hi!"}], "stream": streaming}
        async with running.client.stream("POST", "/v1/chat/completions", json=body) as answer:
            async for _ in answer.aiter_bytes():
                return

    tasks = [asyncio.create_task(leave_midway()) for _ in range(count)]
    if streaming:
        await asyncio.gather(*tasks)
    else:
        await until(lambda: len(decode.holding) == count, "all on the decode worker")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await running.idle()

    def cancelled() -> list[int]:
        return [len({cancel.key.request for cancel in peer.cancels}) for peer in running.peers]

    await until(lambda: cancelled() == [count, count], "all cancellations on both workers")
    assert {record.outcome for record in await running.finished(count)} == {"cancelled"}


async def test_a_cancellation_is_repeated_until_it_is_acknowledged(serve: Serve) -> None:
    running = await serve("prefill")
    decode = await running.add("decode", stalls_at=2, deaf_to_cancel=2)
    task = asyncio.create_task(running.chat())
    await until(lambda: decode.holding, "the decode worker to have it")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await until(lambda: not decode.holding, "an acknowledgement")
    assert len(decode.cancels) == 3
    await until(lambda: len(running.gateway.requests._dispatch.notices._cancels) == 0, "no open cancellation")


async def test_an_end_is_acknowledged_to_both_workers(running: Running) -> None:
    await content(running)
    await until(lambda: all(len(peer.ends) == 1 for peer in running.peers), "acknowledgements")
    await running.idle()


async def test_a_message_for_another_life_is_dropped_and_counted(serve: Serve) -> None:
    running = await serve("prefill")
    decode = await running.add("decode", stalls_at=3)
    task = asyncio.create_task(content(running))
    await until(lambda: any(len(one.sample.tokens) == 3 for one in open_streams(running)), "three tokens")
    (answer,) = open_streams(running)
    key: AttemptKey = answer.sample.attempt_key
    (gateway,) = decode.heard_from()
    for sender, receiver in ((decode.epoch, "another gateway"), ("another worker", gateway)):
        emitted = [Emitted(key, 3, [7])]
        await decode.say(gateway, Tokens(sender=sender, receiver=receiver, emitted=emitted))

    async def counted() -> bool:
        text = (await running.client.get("/metrics")).text
        return 'baton:messages_dropped_total{model_name="tiny"} 2.0' in text

    async with asyncio.timeout(DEADLINE_S):
        while not await counted():
            pass
    assert len(answer.sample.tokens) == 3
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await running.idle()


async def test_an_answer_that_has_begun_waits_for_a_worker(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody can go on, its client hears that it is waited for; a new request is refused."""
    monkeypatch.setattr("gateway.openai.answers.replies.KEEP_ALIVE_S", 0.05)
    running = await serve()
    decode = await running.add("decode", stalls_at=3)
    lines: list[str] = []

    async def read() -> None:
        body = {"model": running.gateway.model, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
        async with running.client.stream("POST", "/v1/chat/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                lines.append(line)

    reading = asyncio.create_task(read())
    await until(lambda: any("content" in line for line in lines), "the first tokens")
    await decode.die()
    await until(lambda: running.gateway.workers.get(decode.epoch) is None, "the death")
    begun = len(lines)
    await until(lambda: any(line.startswith(":") for line in lines[begun:]), "a sign of life")
    assert (await running.chat()).json()["error"]["code"] == "no_workers"
    await running.add("prefill")
    await reading
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in lines if line.startswith("data: {")]
    assert "".join(delta.get("content") or "" for delta in deltas) == TEXT and lines[-2] == "data: [DONE]"


async def test_redis_away_is_nobodys_death(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    running = await serve("prefill", "decode")

    def away(*_: Any, **__: Any) -> None:
        raise ConnectionError("away")

    monkeypatch.setattr(running.gateway._store, "execute_command", away)
    monkeypatch.setattr(running.gateway._store, "pipeline", away)
    await until(lambda: running.gateway.discovery.outage.lasts, "the gateway to notice")
    refusal = await running.chat()
    assert (refusal.status_code, refusal.json()["error"]["code"]) == (503, "queue_unavailable")
    assert all(running.gateway.workers.get(peer.epoch) for peer in running.peers)
    monkeypatch.undo()
    await until(lambda: not running.gateway.discovery.outage.lasts, "the gateway to notice again")
    assert await content(running) == TEXT


async def test_silence_is_bridged_by_comments(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.openai.answers.replies.KEEP_ALIVE_S", 0.1)
    running = await serve("prefill")
    await running.add("decode", step=0.25)
    answer = await running.chat(stream=True, max_tokens=3)
    assert ": still working" in answer.text
    assert answer.text.endswith("data: [DONE]\n\n")


async def test_a_bug_in_a_retry_ends_its_request_at_once(
    serve: Serve, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would notice otherwise: without an attempt, only the deadline ends a sample."""
    running = await serve("prefill", "decode")
    running.peer("prefill").faults.update(fails="engine", retryable=True)

    async def bug(*args: Any) -> None:
        raise ZeroDivisionError("a bug of the dispatch")

    monkeypatch.setattr(running.gateway.requests._dispatch, "place", bug)
    answer = await running.chat()
    assert answer.status_code == 500 and answer.json()["error"]["code"] == "internal_error"
    assert "a bug of the dispatch" in caplog.text and "Traceback" in caplog.text
    assert not running.gateway.requests._tasks and not len(running.gateway.requests)


async def test_silent_samples_are_asked_for_in_one_message(serve: Serve) -> None:
    running = await serve()
    decode = await running.add("decode", stalls_at=3)
    task = asyncio.create_task(running.chat(n=3))
    await until(lambda: [len(one.sample.tokens) for one in open_streams(running)] == [3, 3, 3], "three tokens of each")
    running.gateway.requests.look(time.monotonic() + 2.5)
    await until(lambda: decode.asks, "a question")
    assert [(one.key.sample, one.next_index) for one in decode.asks[0].asked] == [(0, 3), (1, 3), (2, 3)]
    task.cancel()


async def test_who_runs_well_is_looked_at_seldom_and_who_has_a_gap_often(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await serve()
    decode = await running.add("decode", step=0.05)
    task = asyncio.create_task(content(running))
    await until(lambda: any(len(one.sample.tokens) >= 2 for one in open_streams(running)), "two tokens")
    requests = running.gateway.requests
    await until(lambda: not requests._restless, "nobody to be looked at")
    monkeypatch.setattr("gateway.requests.open_requests.LOOK_AT_ALL_S", float("inf"))
    sample = open_streams(running)[0].sample
    ahead = Emitted(sample.attempt_key, len(sample.tokens) + 20, [5])
    (gateway,) = decode.heard_from()
    await decode.say(gateway, Tokens(sender=decode.epoch, receiver=gateway, emitted=[ahead]))
    await until(lambda: requests._restless, "the stream with a gap to be looked at")
    sample._delivery.forget_early()
    await until(lambda: not requests._restless, "nobody to be looked at any more")
    assert await task == TEXT
