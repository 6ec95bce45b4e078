"""Measures how much of a handoff is left when its prompt is computed: the exposed time, beside the prefill's.

    python -m benchmarks.transfer.exposed --model DIR [--prompts 1024 2048] [--transport auto] [--dtype bf16]

Requests of random tokens go one after the other through a gateway, a prefill and a decode worker on this host.
*Exposed* is the prefill worker's own figure: from the end of the prompt's computation until it has read `Accepted`. The
first request of each length warms up, and is not counted.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import httpx
from msgspec.structs import asdict

from benchmarks.processes.children import end_on_termination
from benchmarks.processes.split_system import SplitSystem, split_system
from benchmarks.report import head, row
from contracts.errors import BatonError, GatewayError
from contracts.kinds import Codec, Security, Transport
from infra.config.engine import EngineOptions
from infra.config.transfer import TransferOptions
from infra.redis.worker_load import WorkerLoad
from launcher.bench.machine import processor

VOCABULARY_SIZE = 256  # every model has as many
ANSWER_TOKENS = 8
TIMEOUT_S = 120.0
LOOK_INTERVAL_S = 0.05


@dataclass(frozen=True)
class Measured:
    """Means over the requests of one length, in milliseconds, and the bytes of each."""

    prompt: int
    prefill: float
    grant: float
    send: float
    exposed: float
    ttft: float
    moved: float


def measure(system: SplitSystem, prompt: int, requests: int, seed: int) -> Measured:
    """Sends requests of `prompt` tokens, no two with a common beginning. Raises `GatewayError` if one fails."""
    chance = random.Random(f"{seed}/{prompt}")
    with httpx.Client(base_url=system.url, timeout=TIMEOUT_S) as client:
        model = client.get("/v1/models").json()["data"][0]["id"]
        before, known = WorkerLoad(), len(system.finished()) + 1
        for number in range(requests + 1):
            if number == 1:
                before = _settled(system, known)
            tokens = [chance.randrange(VOCABULARY_SIZE) for _ in range(prompt)]
            body = {"model": model, "prompt": tokens, "max_tokens": ANSWER_TOKENS, "temperature": 0, "ignore_eos": True}
            answer = client.post("/v1/completions", json=body)
            if answer.status_code != 200:
                raise GatewayError(f"a prompt of {prompt} tokens was answered with {answer.status_code}")
    after = _settled(system, known + requests)
    ended = system.finished()[known:]
    assert all(each.attempts == 1 for each in ended)

    def each(of_all: float) -> float:
        return 1000 * of_all / requests

    return Measured(
        prompt,
        prefill=sum(one.prefill_ms for one in ended) / requests,
        grant=each(after.handoff.grant_seconds - before.handoff.grant_seconds),
        send=each(after.handoff.send_seconds - before.handoff.send_seconds),
        exposed=each(after.handoff.exposed_seconds - before.handoff.exposed_seconds),
        ttft=sum(one.ttft_ms for one in ended) / requests,
        moved=sum(one.handoff_bytes for one in ended) / requests,
    )


def _settled(system: SplitSystem, handoffs: int) -> WorkerLoad:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        record = system.records().get("prefill")
        if record is not None and record.load.handoffs == len(system.finished()) == handoffs:
            return record.load
        time.sleep(LOOK_INTERVAL_S)
    raise BatonError(f"the prefill worker does not count {handoffs} handoffs")


def table(rows: Sequence[Measured]) -> Iterator[str]:
    yield head("prompt", "prefill ms", "KV MiB", "grant wait ms", "send ms", "exposed ms", "of prefill", "TTFT ms")
    for each in rows:
        times = f"{each.grant:.1f}", f"{each.send:.1f}", f"{each.exposed:.2f}"
        share = f"{100 * each.exposed / each.prefill:.2f}%"
        yield row(
            each.prompt, f"{each.prefill:.1f}", f"{each.moved / (1 << 20):.1f}", *times, share, f"{each.ttft:.1f}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.transfer.exposed", description=__doc__)
    parser.add_argument("--model", required=True, help="directory in Hugging Face format")
    parser.add_argument("--prompts", type=int, nargs="+", default=[1024, 2000], help="tokens")
    parser.add_argument("--requests", type=int, default=8, help="of each length")
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "fp32"))
    parser.add_argument("--transport", default="auto", choices=("auto", *get_args(Transport)))
    parser.add_argument("--security", default="sealed", choices=get_args(Security))
    parser.add_argument("--codec", default="none", choices=get_args(Codec))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    end_on_termination()
    engine = EngineOptions(dtype=options.dtype, kv_memory=1 << 30)
    transfer = TransferOptions(kv_transport=options.transport, kv_security=options.security, kv_codec=options.codec)
    try:
        with (
            tempfile.TemporaryDirectory() as directory,
            split_system(options.model, Path(directory), engine, transfer) as system,
        ):
            rows = [measure(system, prompt, options.requests, options.seed) for prompt in options.prompts]
    except BatonError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{processor()}, {options.dtype}, {', '.join(map(str, asdict(transfer).values()))}\n")
    print("\n".join(table(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
