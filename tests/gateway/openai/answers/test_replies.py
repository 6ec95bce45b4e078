"""The events that a shaper makes at once are byte for byte those that it makes step by step, for every text."""

import asyncio
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.ids import SampleKey
from contracts.messages.job import Prompt
from contracts.messages.sampling import Limits, Sampling
from gateway.anthropic.bodies import parse_messages
from gateway.anthropic.shaper import MessageShaper
from gateway.metrics.gateway_metrics import Metrics
from gateway.openai.answers.chat_shaper import ChatShaper
from gateway.openai.answers.completion_shaper import CompletionShaper
from gateway.openai.answers.replies import Shaper
from gateway.openai.bodies.parsing import parse_chat, parse_completion
from gateway.output.parts import CallArguments, CallBegins, Content, Part, Reasoning
from gateway.requests.request import Request
from gateway.requests.sample import AdmittedPrompt, Sample
from gateway.requests.stream import Delta, Stream
from gateway.responses.bodies import parse_response
from gateway.responses.shaper import ResponseShaper
from gateway.text.detokenizer import BytePieces
from gateway.text.token_bytes import TokenBytes
from gateway.text.tokenizer import ModelTokenizer

CHAT = {"model": 'a "model"', "stream": True, "messages": [{"role": "user", "content": "Hi!"}]}
BYTES = TokenBytes(chr, lambda token: False, byte_level=False)


def request(samples: int = 1) -> Request:
    admitted = AdmittedPrompt(Prompt([5], 1), Sampling(1), Limits(100), samples=samples)
    metrics = Metrics("m", [])
    keys = [SampleKey("r-1", number) for number in range(samples)]
    streams = [Stream(Sample(key, admitted, 9.0), BytePieces(chr).stream(), 0.0, True, metrics) for key in keys]
    return Request(streams)


def chat(**more: object) -> Shaper:
    body = parse_chat(json.dumps({**CHAT, **more}).encode())
    return ChatShaper("m", body, [request(body.n or 1)], BYTES, 7)


def completion(tokenizer: ModelTokenizer, **more: object) -> Shaper:
    body = parse_completion(json.dumps({"stream": True, "prompt": "Hi!", **more}).encode())
    return CompletionShaper("m", body, [request()], tokenizer)


def response() -> Shaper:
    body = parse_response(json.dumps({"model": "m", "input": "Hi!", "stream": True}).encode())
    return ResponseShaper("m", body, request(), BYTES, 7, None)


def message() -> Shaper:
    body = parse_messages(json.dumps({**CHAT, "max_tokens": 5}).encode())
    return MessageShaper("m", body, request())


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> ModelTokenizer:
    return ModelTokenizer(model)


PARTS = st.one_of(
    st.builds(Content, st.text(min_size=1)),
    st.builds(Content, st.text(min_size=1)),
    st.builds(Reasoning, st.text(min_size=1)),
)
READS = st.lists(st.lists(PARTS, max_size=2), min_size=1, max_size=8)


async def said(shaper: Shaper, reads: Sequence[Sequence[Part]], choice: int, at_once: bool) -> tuple[bytes, int]:
    """Returns all events but the last ones, and how many reads were shaped at once."""
    events, count = b"", 0
    for number, parts in enumerate(reads):
        delta = Delta("", None, [number % 9])
        chunks = shaper.chunks if at_once else shaper._chunks  # type: ignore[attr-defined]
        made = chunks(choice, parts, delta, last=False)
        count += isinstance(made, bytes)
        events += made if isinstance(made, bytes) else b"".join([chunk async for chunk in made])
    return events, count


def same(make: Callable[[], Shaper], reads: Sequence[Sequence[Part]], choice: int = 0) -> int:
    """Compares both ways, at one time and with the same random ids; returns how many reads were shaped at once."""
    with patch("time.time", lambda: 1.0), patch("secrets.token_hex", lambda size: "0" * 2 * size):
        at_once, count = asyncio.run(said(make(), reads, choice, True))
        step_by_step, none = asyncio.run(said(make(), reads, choice, False))
    assert at_once == step_by_step
    assert none == 0
    return count


@settings(max_examples=60)
@given(READS, st.sampled_from([{}, {"n": 3}, {"stream_options": {"include_usage": True}}, {"return_token_ids": True}]))
def test_chats(reads: list[list[Part]], more: dict[str, object]) -> None:
    same(partial(chat, **more), reads, choice=2 if "n" in more else 0)


@settings(max_examples=60)
@given(READS)
def test_completions(tokenizer: ModelTokenizer, reads: list[list[Part]]) -> None:
    same(partial(completion, tokenizer), reads)
    same(partial(completion, tokenizer, echo=True), reads)


def test_plain_texts_are_shaped_at_once_behind_the_first() -> None:
    texts = ["a", '"', "\\", "\n", "\x00", "é", "\u2028", "🙂", "<script>", "%s"]
    assert same(chat, [[Content(text)] for text in texts]) == len(texts) - 1


@pytest.mark.parametrize("make", [response, message])
def test_responses_and_messages_are_shaped_at_once(make: Callable[[], Shaper]) -> None:
    reads: list[list[Part]] = [[Content("a")], [Reasoning("b")], []]
    assert asyncio.run(said(make(), reads, 0, True))[1] == len(reads)


def test_tool_calls_are_shaped_step_by_step_with_the_same_events() -> None:
    same(chat, [[Content("a")], [CallBegins(0, "f")], [CallArguments(0, '{"b"')], [Content("c")], []])
