"""What an HTTP request has of the gateway ends with it, and what comes later begins nothing."""

import time
from pathlib import Path

import pytest

from gateway.openai.admitted_request import AdmittedRequest
from gateway.openai.bodies.parsing import parse_completion
from tests.gateway.keys.conftest import KeyMaker, key_file, make
from tests.gateway.running import Running, Serve, until

__all__ = ["key_file", "make"]


async def admitted(running: Running) -> AdmittedRequest:
    body = parse_completion(b'{"prompt": ["One", "Two"], "max_tokens": 100}')
    return await running.gateway.ready_admission().completion(body)


async def test_its_end_ends_all_requests_once(serve: Serve) -> None:
    running = await serve("prefill")
    await running.add("decode", stalls_at=2)
    gateway, prompts = running.gateway, (await admitted(running)).prompts
    with gateway.holdings() as holdings:
        requests = await holdings.open(prompts, time.monotonic(), streaming=True)
        assert [request.id == holdings.id for request in requests] == [True, False] and len(gateway.requests) == 2
        holdings.end()
        assert len(gateway.requests) == 0
    assert [record.outcome for record in await running.finished(2)] == ["cancelled", "cancelled"]
    await running.idle()


async def test_behind_its_end_nothing_begins(running: Running) -> None:
    """A coroutine that was cancelled in vain goes on."""
    gateway, prompts = running.gateway, (await admitted(running)).prompts
    holdings = gateway.holdings()
    holdings.end()
    assert len(await holdings.open(prompts, time.monotonic(), streaming=True)) == 2
    assert len(gateway.requests) == 0 and await running.jobs() == 0


@pytest.mark.parametrize("fails", [True, False])
async def test_its_lease_ends_with_it(serve: Serve, key_file: Path, make: KeyMaker, fails: bool) -> None:
    key = make("one", concurrency=1)
    gateway = (await serve(api_keys=(str(key_file),))).gateway
    caller = gateway.callers.identify("/v1/completions", {"authorization": f"Bearer {key}"})
    for _ in range(2):
        try:
            with gateway.holdings() as holdings:
                await holdings.admit(caller, 10)
                assert list(gateway.limiter._open) == [holdings.id]
                if fails:
                    raise ValueError("a bug")
        except ValueError:
            assert fails
        assert not gateway.limiter._open
        await until(lambda: not gateway.limiter._changes, "its end to be told")
