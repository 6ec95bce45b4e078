"""Weights that give NaN for one token fail the requests that meet it, each with an error; the others never notice."""

import asyncio
from pathlib import Path

import httpx
import pytest
from safetensors.torch import load_file, save_file

from tests.e2e.harness.golden import LIMITS, build_served_model, references, tokens_of
from tests.e2e.harness.system import System
from tests.plain_http import PLAIN
from tests.reference import Golden
from tests.waiting import LONG_DEADLINE_S

NEW_TOKENS = 12
EMBEDDING = "model.embed_tokens.weight"


def poison(model: Path, token: int) -> None:
    """The embedding of `token` becomes NaN; nothing else is touched, so nobody else's tokens change."""
    weights = load_file(model / "model.safetensors")
    weights[EMBEDDING][token] = float("nan")
    save_file(weights, model / "model.safetensors", {"format": "pt"})


def ask_all(url: str, runs: list[Golden]) -> list[httpx.Response]:

    async def everything() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=url, timeout=LONG_DEADLINE_S, limits=LIMITS, verify=PLAIN) as client:
            model = (await client.get("/v1/models")).json()["data"][0]["id"]
            body = {"model": model, "max_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True}
            posts = (client.post("/v1/completions", json={**body, "prompt": run.prompt}) for run in runs)
            return await asyncio.gather(*posts)

    return asyncio.run(everything())


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_nan_fails_the_request_that_meets_it(tmp_path: Path, backend: str) -> None:
    """One prompt has the token and fails on the prefill worker; one answer draws it and fails on the decode worker."""
    model = build_served_model(tmp_path / "model", "llama")
    runs = references(model, [40, 9, 70, 33, 20, 50], NEW_TOKENS)
    drawing, others = runs[0], runs[1:]
    met = {token for run in others for token in run.prompt + run.tokens} | set(drawing.prompt)
    token = next(token for token in drawing.tokens[1:-1] if token not in met)
    poison(model, token)
    having = Golden([*others[0].prompt, token, *others[1].prompt], [], [])
    worker = ("--dtype", "fp32", "--kv-memory", "16MiB", "--cpu-backend", backend)
    with System(tmp_path, model, worker=worker) as system:
        for _ in range(2):  # the second time with whatever the first has left in the prefix caches
            drew, had, *fine = ask_all(system.gateway_url, [drawing, having, *others])
            for answer in (drew, had):
                assert answer.status_code == 500, answer.text
                assert "non-finite logits" in answer.json()["error"]["message"]
            assert [tokens_of(answer.json()["choices"][0]["text"]) for answer in fine] == [run.tokens for run in others]
        system.wait_until_idle()
        by_role = {record.role: record.load for record in system.records()}
        assert by_role["decode"].handoffs == 2 * (len(others) + 1), "only what the prompt had failed before its handoff"
