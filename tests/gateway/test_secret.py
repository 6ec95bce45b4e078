"""A worker of another deployment that got into the same Redis: it hears nothing, and the log says why."""

import asyncio
from pathlib import Path

import pytest

from tests.gateway.peer import Peer
from tests.gateway.running import TEXT, Serve


async def test_a_worker_with_another_secret_is_named_and_gets_nothing(
    serve: Serve, redis_url: str, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    running = await serve()
    other = await Peer("decode", redis_url, b"another secret, long enough", str(model), running.answer).start()
    running.peers.append(other)
    await running.gateway.discovery.poll()
    assert running.gateway.workers.get(other.epoch) is None, "its record is not signed as ours are"
    (sentence,) = [record.getMessage() for record in caplog.records if "secret" in record.getMessage()]
    assert other.epoch in sentence and "not signed with our secret (--secret-file)" in sentence
    assert (await running.chat()).status_code == 503
    for role in ("prefill", "decode"):
        await running.add(role)
    answers = await asyncio.gather(*(running.chat() for _ in range(4)))
    assert {answer.json()["choices"][0]["message"]["content"] for answer in answers} == {TEXT}
    assert other.jobs == [] and other.heard_from() == []
