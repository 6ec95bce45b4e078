"""Answers keep to what was asked for through the whole system, and when a decode worker is killed in their midst."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.harness.deaths import kill_busiest
from tests.e2e.harness.system import System
from tests.engine.grammars.answering import CLOSING, random_model
from tests.engine.grammars.schemas import REGEXES, SCHEMAS, Schema, between, closed, listed, text
from tests.engine.grammars.validity import wrong_json, wrong_text
from tests.plain_http import PLAIN
from tests.waiting import LONG_DEADLINE_S, wait_until

LONG = listed(closed(name=text(1, 20), size=between(1, 999), tags=listed(text(1, 8))), 15, 20)
GBNF = 'root ::= word (" " word){2,4}\nword ::= [a-z] [a-z]? [a-z]? "!"'
BUSY = "grammar_checks_busy"
CHUNKS_BEFORE_KILL = 20  # chunks of a stream after which a worker is killed

Problem = Callable[[str], str]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("constrained") / "model")


def by_schema(schema: Schema) -> tuple[dict[str, Any], Problem]:
    asked = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    return {"response_format": asked}, lambda found: wrong_json(schema, found)


def by_regex(field: str, regex: str) -> tuple[dict[str, Any], Problem]:
    asked = {"structured_outputs": {"regex": regex}} if field == "structured_outputs" else {field: regex}
    return asked, lambda found: wrong_text(regex, found)


FORMS: list[tuple[dict[str, Any], Problem]] = [
    *[by_schema(LONG) for _ in range(8)],
    *[by_schema(schema) for schema in list(SCHEMAS.values())[-30:]],
    *[by_regex(field, regex) for regex in REGEXES[:10] for field in ("structured_outputs", "guided_regex")],
    ({"response_format": {"type": "json_object"}}, lambda found: wrong_json({"type": "object"}, found)),
    ({"structured_outputs": {"json": LONG}}, lambda found: wrong_json(LONG, found)),
    ({"guided_json": LONG, "ignore_eos": True}, lambda found: wrong_json(LONG, found)),
    ({"guided_choice": ["yes", "no"], "min_tokens": 20}, lambda found: wrong_text("yes|no", found)),
    ({"guided_grammar": GBNF}, lambda found: wrong_text("[a-z]{1,3}!( [a-z]{1,3}!){2,4}", found)),
]


async def answer(client: httpx.AsyncClient, number: int, flowing: Callable[[], None]) -> str:
    """Says what is wrong with one streamed answer; `flowing` is called when some of it is here.

    It asks again, as official clients do, where the machine is too busy to check its grammar in time.
    """
    while BUSY in (wrong := await one_answer(client, number, flowing)):
        pass
    return wrong


async def one_answer(client: httpx.AsyncClient, number: int, flowing: Callable[[], None]) -> str:
    """Says what is wrong with an answer, or what it was refused with."""
    asked, problem = FORMS[number]
    body = {
        "messages": [{"role": "user", "content": f"Hello {number}"}],
        "logit_bias": {str(token): 4 for token in CLOSING},
        "temperature": number % 2,
        "frequency_penalty": 0.1 if number % 2 == 0 else 0,  # greedy noise may say one thing for ever
        "seed": number,
        "max_tokens": 1500,
        "stream": True,
        **asked,
    }
    found, finish, chunks = "", None, 0
    async with client.stream("POST", "/v1/chat/completions", json=body) as stream:
        if stream.status_code != 200:
            return f"{stream.status_code} {(await stream.aread()).decode()}"
        async for line in stream.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = httpx.Response(200, content=line.removeprefix("data: ")).json()
            if "error" in event:
                return str(event["error"])
            for choice in event["choices"]:
                found += choice["delta"].get("content") or ""
                finish = choice["finish_reason"] or finish
            chunks += 1
            if chunks == CHUNKS_BEFORE_KILL:
                flowing()
    return problem(found) if finish == "stop" else f"{finish}: {found[:80]}"


def test_every_answer_is_what_was_asked_for_when_a_decode_worker_is_killed(tmp_path: Path, model: Path) -> None:
    worker = ("--dtype", "fp32", "--kv-memory", "64MiB", "--cpu-backend", "torch")
    with System(tmp_path, model, prefill=1, decode=2, worker=worker) as system:
        flowing = 0
        killing: list[asyncio.Future[None]] = []

        def kill_in_the_midst() -> None:
            nonlocal flowing
            flowing += 1
            if flowing == 8:
                killing.append(asyncio.ensure_future(asyncio.to_thread(kill_busiest, system)))

        async def all_answers() -> list[str]:
            async with httpx.AsyncClient(base_url=system.gateway_url, timeout=LONG_DEADLINE_S, verify=PLAIN) as client:
                found = await asyncio.gather(*(answer(client, each, kill_in_the_midst) for each in range(len(FORMS))))
            await asyncio.gather(*killing)
            return found

        wrong = {number: why for number, why in enumerate(asyncio.run(all_answers())) if why}
        assert wrong == {}
        assert flowing > 8, "answers that were under way"
        system.wait_until_idle()
        wait_until(lambda: any(record.attempts > 1 for record in system.finished()), "an answer that was begun anew")
