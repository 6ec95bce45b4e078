"""The first token waits for no KV: it comes while the decode worker stands still and can take none."""

import json
import signal
from pathlib import Path

import httpx

from tests.e2e.harness.golden import build_served_model, references, tokens_of
from tests.e2e.harness.system import System
from tests.plain_http import PLAIN
from tests.waiting import LONG_DEADLINE_S, wait_until


def test_a_client_has_its_first_token_before_a_byte_of_kv_has_moved(tmp_path: Path) -> None:
    model = build_served_model(tmp_path / "model", "llama")
    (run,) = references(model, [100], new_tokens=8)
    worker = ["--dtype", "fp32", "--kv-memory", "64MiB"]
    with System(tmp_path, model, worker=worker) as system:
        body = {
            "model": httpx.get(f"{system.gateway_url}/v1/models", verify=PLAIN).json()["data"][0]["id"],
            "prompt": run.prompt,
            "max_tokens": 8,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        decode = system.workers["decode-0"]
        decode.send_signal(signal.SIGSTOP)
        try:
            with httpx.stream(
                "POST", f"{system.gateway_url}/v1/completions", json=body, timeout=LONG_DEADLINE_S, verify=PLAIN
            ) as answer:
                texts = []
                for line in answer.iter_lines():
                    if not line.startswith("data: {"):
                        continue
                    texts.append(json.loads(line.removeprefix("data: "))["choices"][0]["text"])
                    if len(texts) == 1:  # it could only come from the prefill worker
                        decode.send_signal(signal.SIGCONT)
        finally:
            decode.send_signal(signal.SIGCONT)
        assert tokens_of("".join(texts)) == run.tokens, "and the others follow"
        wait_until(system.finished, "the request's record")
        assert [record.outcome for record in system.finished()] == ["finished"]
