"""Measures the effect of expensive requests on other clients: `python -m benchmarks.stress.bombs`.

Bombs are grammars, tools, arguments and conversations of megabytes. A few clients stream answers all the time and note
the seconds between chunks: first alone, then while another client sends bombs, one after the other. Each bomb has to be
refused or served within a second on an idle machine; the time is that of the slowest answer. Target: the 99th
percentile between chunks is at most twice as long as before.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np

from benchmarks.processes.children import exit_status
from benchmarks.processes.split_system import split_system
from launcher.options import DEMO_MODEL
from launcher.stages import StageDisplay

MAX_P99_RATIO = 2.0
MAX_ANSWER_S = 1.0
TIMEOUT_S = 60.0  # s
ALONE_S = 10.0  # s for which the streams are watched before the first bomb
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"


class Found(NamedTuple):
    """How the last bomb of a name was answered, and how long the slowest took, s."""

    status: int
    code: str
    slowest: float


def bombs(number: int, model: str) -> Iterator[tuple[str, str, bytes]]:
    for name, form in grammars(number):
        yield name, COMPLETIONS, json.dumps({"prompt": "a", "max_tokens": 8, **form}).encode()
    for name, chat in chats():
        yield name, CHAT, json.dumps({"max_tokens": 8, "user": f"{number}", **chat}).encode()
    thought = {"type": "thinking", "thinking": "t" * 1900, "signature": ""}
    said = [{"role": "assistant", "content": [thought]}] * 2000 + [{"role": "user", "content": "a"}]
    message = {"model": model, "max_tokens": 8, "messages": said}
    yield "thoughts, to Anthropic's path", MESSAGES, json.dumps(message).encode()
    reasoning = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "t" * 1900}]}
    yield "thoughts, to Responses", RESPONSES, json.dumps({"input": [reasoning] * 2000}).encode()
    yield "deep nesting", CHAT, b'{"messages": ' + b"[" * 500_000 + b"]" * 500_000 + b"}"


def grammars(number: int) -> Iterator[tuple[str, dict[str, Any]]]:
    deep: dict[str, Any] = {"title": f"{number}"}
    for _ in range(200):
        deep = {"type": "object", "properties": {"a": deep}}
    patterns = {
        f"k{each}": {"type": "string", "pattern": f"^[a-z]{{1,{each % 50 + 1}}}x{each}$"} for each in range(3000)
    }
    words = [f"{each:x}" * 8 for each in range(50000)]
    chain = [f"r{each}: r{each + 1} r{each + 1} | r{each + 1}" for each in range(9000)]
    yield "nested schema", {"guided_json": deep}
    yield "a million states", {"guided_json": {"enum": words, "title": f"{number}"}}
    yield "fewer states", {"guided_json": {"enum": words[:8000], "title": f"{number}"}}
    yield "patterns", {"guided_json": {"properties": patterns, "title": f"{number}"}}
    yield "a long regex", {"guided_regex": "(a+)+" * 20000}
    yield "a regex of states", {"guided_regex": f"(a|b)*a(a|b){{{2000 + number}}}"}
    yield "parentheses", {"guided_regex": "(" * 5000 + f"{number}" + ")" * 5000}
    yield "a chain of rules", {"guided_grammar": "\n".join(["start: r0", *chain, f'r9000: "{number}"'])}
    yield "ambiguity", {"guided_grammar": f'start: e\ne: e e e | e e | /./ | ""\n# {number}\n'}
    yield "GBNF", {"guided_grammar": "root ::= " + "(" * 20000 + f'"{number}"' + ")" * 20000}


def chats() -> Iterator[tuple[str, dict[str, Any]]]:
    properties = {f"a{each}": {"type": "string", "description": "d" * 100} for each in range(9)}
    tools = [_tool(f"f{each}", {"type": "object", "properties": properties}) for each in range(10_000)]
    hello = [{"role": "user", "content": "a"}]
    yield "10,000 tools", {"messages": hello, "tools": [_tool(f"f{each}", {}) for each in range(10_000)]}
    yield "4 MB of tools", {"messages": hello, "tools": tools[:2500]}
    yield "128 tools", {"messages": hello, "tools": tools[:128], "tool_choice": "required"}
    for name, arguments in (
        ("1 MB of text as arguments", json.dumps({"a": "x" * 1_000_000})),
        ("1 MB of numbers as arguments", json.dumps({"a": list(range(140_000))})),
        ("1 MB of objects as arguments", json.dumps({f"k{each}": {"a": 1} for each in range(50_000)})),
        ("1 MB of brackets as arguments", "[" * 500_000 + "]" * 500_000),
    ):
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
        result = {"role": "tool", "tool_call_id": "c", "content": "a"}
        said = {"role": "assistant", "content": None, "tool_calls": [call]}
        yield name, {"messages": [*hello, said, result]}
    yield "half a million ids", {"messages": hello, "stop_token_ids": list(range(300_000))}


def _tool(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


async def stream(client: httpx.AsyncClient, until: asyncio.Event, gaps: list[float]) -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "stream": True, "temperature": 1.0}
    body["return_token_ids"] = True  # so that a token without text is a chunk as well, not a gap
    while not until.is_set():
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            last = 0.0
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    now = time.perf_counter()
                    if last:
                        gaps.append(now - last)
                    last = now


async def measure(url: str, streams: int, rounds: int) -> int:
    limits = httpx.Limits(max_connections=streams + 4)
    found: dict[str, Found] = {}
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, limits=limits) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
        made = [bomb for each in range(rounds) for bomb in bombs(each, model)]  # before the measurement
        warm = await client.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 2, "guided_regex": "a|b"})
        warm.raise_for_status()  # the processes that check grammars are there
        percentiles = []
        for bombing in (False, True):
            gaps: list[float] = []
            until = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                for _ in range(streams):
                    group.create_task(stream(client, until, gaps))
                if bombing:
                    await drop(client, made, found)
                else:
                    await asyncio.sleep(ALONE_S)
                until.set()
            percentiles.append(float(np.percentile(gaps, 99)))
            what = "with bombs" if bombing else "alone"
            print(
                f"{streams} streams {what}: {len(gaps)} gaps, median {1000 * np.median(gaps):.1f} ms,"
                f" p99 {1000 * percentiles[-1]:.1f} ms, longest {1000 * max(gaps):.1f} ms"
            )
    ratio = percentiles[1] / percentiles[0]
    wrong = [name for name, one in found.items() if one.status >= 500]
    late = [name for name, one in found.items() if one.slowest > MAX_ANSWER_S]
    for name, one in found.items():
        print(f"{name:32}{1000 * one.slowest:>7.0f} ms   {one.status} {one.code}")
    print(f"p99 with bombs / alone: {ratio:.2f}; 5xx: {wrong}; after more than {MAX_ANSWER_S:g} s: {late}")
    return int(bool(wrong or late or ratio > MAX_P99_RATIO))


async def drop(client: httpx.AsyncClient, made: list[tuple[str, str, bytes]], found: dict[str, Found]) -> None:
    for name, path, body in made:
        began = time.perf_counter()
        answer = await client.post(path, content=body, headers={"content-type": "application/json"})
        took = time.perf_counter() - began
        code = str(answer.json().get("error", {}).get("code", "")) if answer.is_error else ""
        slowest = max(took, found[name].slowest) if name in found else took
        found[name] = Found(answer.status_code, code, slowest)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stress.bombs", description=__doc__)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()

    wrong = 0

    def run(stages: StageDisplay) -> None:
        nonlocal wrong
        with tempfile.TemporaryDirectory() as directory, split_system(str(DEMO_MODEL), Path(directory)) as system:
            wrong = asyncio.run(measure(system.url, given.streams, given.rounds))

    return exit_status(run) or wrong


if __name__ == "__main__":
    sys.exit(main())
