"""Limits of keys hold over all gateways, to the request; what was not used is given back; Redis away is said."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable
from pathlib import Path
from typing import cast

import httpx
import pytest

from contracts.errors import StoreUnavailable
from gateway.keys import limiter
from infra.keys.api_key import id_of
from tests.gateway.keys.conftest import KeyMaker
from tests.gateway.peer import introduce
from tests.gateway.running import Running, Serve, until


async def two(serve: Serve, key_file: Path) -> list[Running]:
    """Two gateways of one deployment, with workers of each other."""
    gateways = [await serve("prefill", "decode", api_keys=(str(key_file),)) for _ in range(2)]
    introduce([peer for one in gateways for peer in one.peers])
    return gateways


async def ask(running: Running, key: str, tokens: int | None = 1, **more: object) -> httpx.Response:
    body = {"prompt": "Hi!", "max_tokens": tokens, **more}
    return await running.client.post("/v1/completions", json=body, headers={"authorization": f"Bearer {key}"})


async def counted(running: Running, key: str, what: str, expected: int) -> None:
    """Returns when Redis has counted so much for a key; fails if it does not come to that."""
    places = await running.store.keys(f"baton:rates:{{{id_of(key)}}}:{what}:*")
    found = -1
    end = time.monotonic() + 10
    while found != expected:
        assert time.monotonic() < end, f"{found} {what} are counted, not {expected}"
        await asyncio.sleep(0.005)
        values = [value for place in places for value in await cast(Awaitable[list[bytes]], running.store.hvals(place))]
        found = sum(map(int, values))


async def test_requests_per_minute_hold_over_two_gateways(serve: Serve, key_file: Path, make: KeyMaker) -> None:
    key, free = make("one", requests_per_minute=50), make("free")
    gateways = await two(serve, key_file)
    answers = await asyncio.gather(*(ask(gateways[number % 2], key) for number in range(80)))
    assert Counter(answer.status_code for answer in answers) == {200: 50, 429: 30}
    by = [sum(answer.status_code == 200 for answer in answers[place::2]) for place in (0, 1)]
    assert min(by) >= 10, "both have served"
    await asyncio.gather(*(ask(one, key) for one in gateways for _ in range(5)))
    for answer in answers:
        left = int(answer.headers["x-ratelimit-remaining-requests"])
        assert answer.headers["x-ratelimit-limit-requests"] == "50" and "x-ratelimit-limit-tokens" not in answer.headers
        assert answer.headers["x-ratelimit-reset-requests"].endswith("s")
        if answer.status_code == 429:
            assert left == 0 and 0 < int(answer.headers["retry-after-ms"]) <= 60_500
            assert int(answer.headers["retry-after"]) * 1000 >= int(answer.headers["retry-after-ms"])
            assert "50 requests per minute" in answer.json()["error"]["message"]
            assert answer.json()["error"]["code"] == "rate_limit_exceeded"
    answer = await ask(gateways[0], free)
    assert answer.status_code == 200 and not any(name.startswith("x-ratelimit") for name in answer.headers)


async def test_tokens_per_minute_hold_over_two_gateways(serve: Serve, key_file: Path, make: KeyMaker) -> None:
    key = make("one", tokens_per_minute=1000)
    gateways = await two(serve, key_file)
    prompt = len(gateways[0].tokenizer.encode("Hi!", special=True))
    each = prompt + 17
    answers = await asyncio.gather(*(ask(gateways[n % 2], key, 17, ignore_eos=True) for n in range(90)))
    assert Counter(answer.status_code for answer in answers)[200] == 1000 // each
    used = sum(answer.json()["usage"]["total_tokens"] for answer in answers if answer.status_code == 200)
    assert 980 <= used <= 1000
    refusal = next(answer for answer in answers if answer.status_code == 429)
    assert "1000 tokens per minute" in refusal.json()["error"]["message"]
    assert refusal.headers["x-ratelimit-limit-tokens"] == "1000"


async def test_tokens_that_were_not_used_are_given_back(
    serve: Serve, key_file: Path, make: KeyMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limiter, "REFUSAL_STANDS_S", 0.0)
    key = make("one", tokens_per_minute=200)
    running = await serve("prefill", "decode", api_keys=(str(key_file),))
    running.text = "Short."
    prompt = len(running.tokenizer.encode("Hi!", special=True))
    answer = await ask(running, key, 150)
    assert answer.headers["x-ratelimit-remaining-tokens"] == f"{200 - prompt - 150}"
    used = answer.json()["usage"]["total_tokens"]
    await counted(running, key, "tokens", used)
    for _ in range(2):  # a refused one takes nothing with it
        refused = await ask(running, key, 200 - used - prompt + 1)
        assert refused.status_code == 429, "one token too many"
        await counted(running, key, "tokens", used)
    answer = await ask(running, key, 200 - used - prompt)
    assert (answer.status_code, answer.headers["x-ratelimit-remaining-tokens"]) == (200, "0")


async def test_an_answer_that_nobody_bounded_is_charged_for_what_it_had(
    serve: Serve, key_file: Path, make: KeyMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.openai.context_window.UNBOUNDED_ANSWER_TOKENS", 4)
    key = make("one", tokens_per_minute=10_000)
    headers = {"authorization": f"Bearer {key}"}
    running = await serve("prefill", "decode", api_keys=(str(key_file),))
    body = {"messages": [{"role": "user", "content": "Hi!"}]}
    first = await running.client.post("/v1/chat/completions", json=body, headers=headers)
    usage = first.json()["usage"]
    assert usage["completion_tokens"] > 4
    assert first.headers["x-ratelimit-remaining-tokens"] == f"{10_000 - usage['prompt_tokens'] - 4}"
    await counted(running, key, "tokens", usage["total_tokens"])
    second = await running.client.post("/v1/chat/completions", json=body, headers=headers)
    left = 10_000 - usage["total_tokens"] - usage["prompt_tokens"] - 4
    assert second.headers["x-ratelimit-remaining-tokens"] == f"{left}"


async def test_concurrency_holds_over_two_gateways_and_ends_with_its_request(
    serve: Serve, key_file: Path, make: KeyMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limiter, "REFUSAL_STANDS_S", 0.0)
    key = make("one", concurrency=3)
    gateways = [await serve("prefill", api_keys=(str(key_file),)) for _ in range(2)]
    for one in gateways:
        await one.add("decode", step=0.02)
    introduce([peer for one in gateways for peer in one.peers])
    answers = await asyncio.gather(*(ask(gateways[n % 2], key, 20) for n in range(12)))
    assert Counter(answer.status_code for answer in answers) == {200: 3, 429: 9}
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert refused.headers["retry-after"] == "1" and "3 requests in progress" in refused.json()["error"]["message"]
    for one in gateways:
        await one.idle()
        await until(lambda one=one: not one.gateway.limiter._changes and not one.gateway.limiter._open, "its end")  # type: ignore[misc]
    assert (await ask(gateways[1], key)).status_code == 200
    async with gateways[0].client.stream(
        "POST",
        "/v1/completions",
        json={"prompt": "Hi!", "max_tokens": 60, "stream": True},
        headers={"authorization": f"Bearer {key}"},
    ) as answer:
        assert answer.status_code == 200
        await until(lambda: len(gateways[0].gateway.limiter._open) == 1, "it to be in progress")
    await until(lambda: not gateways[0].gateway.limiter._open, "a client that is gone to be in progress no more")


async def test_a_fresh_refusal_costs_neither_redis_nor_a_body(
    serve: Serve, key_file: Path, make: KeyMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limiter, "REFUSAL_STANDS_S", 30.0)
    key = make("one", requests_per_minute=1)
    running = await serve("prefill", "decode", api_keys=(str(key_file),))
    assert [(await ask(running, key)).status_code for _ in range(2)] == [200, 429]
    await counted(running, key, "requests", 1)
    before = (await running.store.info("commandstats")).get("cmdstat_hincrby", {}).get("calls", 0)
    answer = await running.client.post(
        "/v1/completions", content=b"no json at all", headers={"authorization": f"Bearer {key}"}
    )
    assert (answer.status_code, answer.headers["x-ratelimit-remaining-requests"]) == (429, "0")
    assert 30_000 < int(answer.headers["retry-after-ms"]) <= 60_500
    after = (await running.store.info("commandstats"))["cmdstat_hincrby"]["calls"]
    assert before == after > 0


async def test_more_than_a_minute_has_is_wrong_and_not_too_early(serve: Serve, key_file: Path, make: KeyMaker) -> None:
    key = make("one", tokens_per_minute=100)
    running = await serve("prefill", "decode", api_keys=(str(key_file),))
    answer = await ask(running, key, 120)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "more_than_a_minute")
    assert "retry-after" not in answer.headers and "100 per minute" in answer.json()["error"]["message"]


async def test_redis_that_is_away_is_said_and_callers_without_limits_go_on(
    serve: Serve, key_file: Path, make: KeyMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, free = make("one", requests_per_minute=9), make("free")
    running = await serve("prefill", "decode", api_keys=(str(key_file),))

    async def away(*anything: object) -> None:
        raise StoreUnavailable("Redis is away")

    monkeypatch.setattr(running.gateway.limiter._rates, "add", away)
    answer = await ask(running, key)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "limits_unavailable")
    assert answer.headers["retry-after"] == "2" and await running.jobs() == 0
    assert (await ask(running, free)).status_code == 200


async def test_an_answer_is_counted_once_whatever_becomes_of_it(serve: Serve, key_file: Path, make: KeyMaker) -> None:
    key = make("one", requests_per_minute=9, tokens_per_minute=500)
    running = await serve(api_keys=(str(key_file),))  # no worker is there: nothing can be placed
    answer = await ask(running, key, 50)
    assert answer.status_code == 503 and answer.headers["x-ratelimit-remaining-tokens"] != "500"
    await counted(running, key, "tokens", 0)
    await running.add("decode")
    prompt = len(running.tokenizer.encode("Hi!", special=True))
    answer = await ask(running, key, 2)
    assert answer.headers["x-ratelimit-remaining-tokens"] == f"{500 - prompt - 2}"
    assert answer.headers["x-ratelimit-remaining-requests"] == "7"


COUNTS = [
    ("/tokenize", {"prompt": "Hi!"}),
    ("/v1/detokenize", {"tokens": [1]}),
    ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "Hi!"}]}),
    ("/v1/responses/input_tokens", {"input": "Hi!"}),
]


@pytest.mark.parametrize(("path", "body"), COUNTS)
async def test_who_has_tokens_counted_sends_requests_and_has_none_in_progress(
    serve: Serve, key_file: Path, make: KeyMaker, path: str, body: dict[str, object]
) -> None:
    key = make("one", requests_per_minute=2, tokens_per_minute=10, concurrency=1)
    running = await serve("prefill", "decode", api_keys=(str(key_file),))
    headers = {"authorization": f"Bearer {key}"}
    answers = [await running.client.post(path, json={"model": "tiny", **body}, headers=headers) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [answer.headers.get("x-ratelimit-remaining-requests") for answer in answers] == ["1", "0", "0"]
    assert "x-ratelimit-limit-tokens" not in answers[0].headers
    assert await running.store.keys("baton:rates:*:leases") == [] == [*running.gateway.limiter._open]
