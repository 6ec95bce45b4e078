"""A decode worker leaves its cores to the prefill worker of its host, and the answers stay the same."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.harness.golden import build_served_model
from tests.e2e.harness.system import System
from tests.plain_http import PLAIN

LONG_PROMPTS = [[11 + number, *range(20, 219), *range(20, 219), *range(20, 219)] for number in range(6)]


@pytest.mark.timeout(240)
def test_decodes_rest_while_more_prompts_are_computed_on_their_host(tmp_path: Path) -> None:
    """The prefill worker computes the long prompts in one step, which is longer than a decode step by far."""
    model = build_served_model(tmp_path / "model", "llama")
    options = ["--dtype", "fp32", "--kv-memory", "64MiB", "--max-batch-tokens", "4096", "--log-level", "debug"]
    with System(tmp_path, model, worker=[*options, "--busy-page", str(tmp_path / "busy")]) as system:
        name = httpx.get(f"{system.gateway_url}/v1/models", verify=PLAIN).json()["data"][0]["id"]
        with httpx.Client(base_url=system.gateway_url, timeout=120, verify=PLAIN) as client:

            def body(prompt: Any, tokens: int) -> dict[str, Any]:
                return {"model": name, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}

            alone = client.post("/v1/completions", json=body([5, 6, 7], 900)).json()["choices"][0]["text"]
            assert "decodes rest" not in system.log()
            with client.stream("POST", "/v1/completions", json={**body([5, 6, 7], 900), "stream": True}) as answer:
                lines = answer.iter_lines()
                begun = [next(lines), next(lines)]
                assert client.post("/v1/completions", json=body(LONG_PROMPTS, 2)).status_code == httpx.codes.OK
                found = [line for line in [*begun, *lines] if line.startswith("data: {")]
        texts = [choice["text"] for line in found for choice in json.loads(line[len("data: ") :])["choices"]]
        assert "".join(texts) == alone
        assert "decodes rest" in system.log()
