"""Log-probabilities through the whole system equal transformers': by both routes, drawn and greedy, after a kill."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from torch import Tensor

from tests.e2e.harness.deaths import death_midway
from tests.e2e.harness.golden import build_served_model
from tests.e2e.harness.system import System
from tests.plain_http import PLAIN
from tests.reference import load_reference, logprobs, make_prompts
from tests.waiting import LONG_DEADLINE_S, wait_until

FP32 = ("--dtype", "fp32", "--kv-memory", "64MiB", "--max-batch-tokens", "56")
MAX_ERROR = 1e-4
ASKED: dict[str, Any] = {"ignore_eos": True, "return_token_ids": True, "return_tokens_as_token_ids": True}
KINDS: list[dict[str, Any]] = [
    {"temperature": 0, "logprobs": 20, "prompt_logprobs": 3},
    {"temperature": 1, "seed": 5, "logprobs": 5, "n": 2, "prompt_logprobs": 0},
    {"temperature": 0, "logprobs": 0},
    {"temperature": 1, "seed": 7, "logprobs": 1, "n": 3},
    {"temperature": 0},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_served_model(tmp_path_factory.mktemp("model"), "llama")


@pytest.fixture(scope="module")
def reference(model: Path) -> Any:
    return load_reference(model)


@pytest.fixture(scope="module", params=[1, 0], ids=["handoff", "short path"])
def system(request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    prefill: int = request.param
    with System(tmp_path_factory.mktemp("system"), model, prefill=prefill, worker=FP32) as running:
        yield running


def ask(url: str, bodies: Sequence[dict[str, Any]]) -> list[Any]:

    async def one(client: httpx.AsyncClient, body: dict[str, Any]) -> Any:
        answer = await client.post("/v1/completions", json={**ASKED, **body})
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def everything() -> list[Any]:
        async with httpx.AsyncClient(base_url=url, timeout=LONG_DEADLINE_S, verify=PLAIN) as client:
            return await asyncio.gather(*(one(client, body) for body in bodies))

    return asyncio.run(everything())


def number(name: str) -> int:
    return int(name.removeprefix("token_id:"))


def best_of(told: dict[int, float], row: Tensor, top: int) -> None:
    assert max(1, top) <= len(told) <= top + 1
    assert all(value == pytest.approx(float(row[token]), abs=MAX_ERROR) for token, value in told.items())
    likeliest = sorted(told.values(), reverse=True)[:top]
    assert likeliest == pytest.approx(row.topk(top).values.tolist(), abs=MAX_ERROR)


def check(body: dict[str, Any], answer: Any, reference: Any) -> None:
    """Every token of every choice, and of the prompt, has its score, once."""
    prompt, top = body["prompt"], body.get("logprobs")
    assert len(answer["choices"]) == body.get("n", 1)
    for choice in answer["choices"]:
        tokens, told = choice["token_ids"], choice["logprobs"]
        assert len(tokens) == body["max_tokens"] and (told is None) == (top is None)
        rows = logprobs(reference, prompt + tokens)
        if told is not None:
            assert [number(name) for name in told["tokens"]] == tokens
            own = [float(row[token]) for row, token in zip(rows[len(prompt) - 1 :], tokens, strict=False)]
            assert told["token_logprobs"] == pytest.approx(own, abs=MAX_ERROR)
            for place, row in zip(told["top_logprobs"], rows[len(prompt) - 1 :], strict=False):
                best_of({number(name): value for name, value in place.items()}, row, top or 0)
        check_prompt(choice.get("prompt_logprobs"), prompt, rows, body.get("prompt_logprobs"))


def check_prompt(told: Any, prompt: list[int], rows: Tensor, top: int | None) -> None:
    assert (told is None) == (top is None)
    if told is None or top is None:
        return
    assert told[0] is None and len(told) == len(prompt)
    for place, token, row in zip(told[1:], prompt[1:], rows, strict=False):
        best_of({int(name): each["logprob"] for name, each in place.items()}, row, top)
        assert place[str(token)]["logprob"] == pytest.approx(float(row[token]), abs=MAX_ERROR)
        assert place[str(token)]["rank"] == pytest.approx(1 + int((row > row[token]).sum()), abs=1)


def test_scores_equal_transformers(system: System, reference: Any) -> None:
    prompts = make_prompts([1, 40, 57, 130, 300], 320, seed=4)
    bodies = [{**kind, "prompt": prompt, "max_tokens": 8} for prompt in prompts for kind in KINDS]
    for body, answer in zip(bodies, ask(system.gateway_url, bodies), strict=True):
        check(body, answer, reference)
    system.wait_until_idle()


def test_after_a_kill_every_token_still_has_its_score_once(tmp_path: Path, model: Path, reference: Any) -> None:
    prompts = make_prompts([20, 90, 210, 40] * 4, 320, seed=5)
    bodies = [
        {**kind, "prompt": prompt, "max_tokens": 250} for prompt, kind in zip(prompts, KINDS[:4] * 4, strict=True)
    ]
    with System(tmp_path, model, decode=2, worker=FP32) as running:
        with death_midway(running):
            answers = ask(running.gateway_url, bodies)
        # Records come a moment behind the answers, and those that were begun anew come last.
        wait_until(lambda: any(record.attempts > 1 for record in running.finished()), "a request that was begun anew")
    for body, answer in zip(bodies, answers, strict=True):
        check(body, answer, reference)
