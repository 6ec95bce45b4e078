"""What a shaper makes at once is byte for byte what it makes the long way, in every API, for every text."""

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
from gateway.openai.answers.chat_shape import ChatShape
from gateway.openai.answers.completion_shape import CompletionShape
from gateway.openai.answers.replies import Shaper
from gateway.openai.bodies.parsing import parse_chat, parse_completion
from gateway.output.parts import CallArguments, CallBegins, Content, Part, Reasoning
from gateway.reports.metrics import Metrics
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
    return ChatShape("m", body, [request(body.n or 1)], BYTES, 7)


def completion(tokenizer: ModelTokenizer, **more: object) -> Shaper:
    body = parse_completion(json.dumps({"stream": True, "prompt": "Hi!", **more}).encode())
    return CompletionShape("m", body, [request()], tokenizer)


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


async def said(shaper: Shaper, reads: Sequence[Sequence[Part]], choice: int, quickly: bool) -> tuple[bytes, int]:
    """Returns all events but the last ones, and how many reads were quick."""
    events, quick = b"", 0
    for number, parts in enumerate(reads):
        delta = Delta("", None, [number % 9])
        made = at_once(shaper, choice, parts, delta.token_ids, number) if quickly else None
        quick += made is not None
        if made is None:
            made = b"".join([chunk async for chunk in shaper.chunks(choice, parts, delta, last=False)])
        events += made
    return events, quick


def at_once(shaper: Shaper, choice: int, parts: Sequence[Part], token_ids: Sequence[int], number: int) -> bytes | None:
    """Returns what a shaper makes at once: every second time of the text, where that is all."""
    if number % 2 and len(parts) == 1 and isinstance(parts[0], Content):
        return shaper.text(choice, parts[0].text, token_ids)
    return shaper.text(choice, "", token_ids) if number % 2 and not parts else shaper.quick(choice, parts, token_ids)


def same(make: Callable[[], Shaper], reads: Sequence[Sequence[Part]], choice: int = 0) -> int:
    """Compares both ways, at one time and with the same random ids; returns how many reads were quick."""
    with patch("time.time", lambda: 1.0), patch("secrets.token_hex", lambda size: "0" * 2 * size):
        quickly, quick = asyncio.run(said(make(), reads, choice, True))
        slowly, none = asyncio.run(said(make(), reads, choice, False))
    assert quickly == slowly
    assert none == 0
    return quick


@settings(max_examples=60, deadline=None)
@given(READS, st.sampled_from([{}, {"n": 3}, {"stream_options": {"include_usage": True}}, {"return_token_ids": True}]))
def test_chats(reads: list[list[Part]], more: dict[str, object]) -> None:
    same(partial(chat, **more), reads, choice=2 if "n" in more else 0)


@settings(max_examples=60, deadline=None)
@given(READS)
def test_completions(tokenizer: ModelTokenizer, reads: list[list[Part]]) -> None:
    same(partial(completion, tokenizer), reads)
    same(partial(completion, tokenizer, echo=True), reads)


@settings(max_examples=60, deadline=None)
@given(READS)
def test_responses_and_messages(reads: list[list[Part]]) -> None:
    same(response, reads)
    same(message, reads)


@pytest.mark.parametrize("make", [chat, response, message])
def test_plain_texts_are_quick_behind_the_first(make: Callable[[], Shaper]) -> None:
    texts = ["a", '"', "\\", "\n", "\x00", "é", "\u2028", "🙂", "<script>", "%s"]
    assert same(make, [[Content(text)] for text in texts]) == len(texts) - 1


def test_calls_of_tools_go_the_long_way_and_come_out_the_same() -> None:
    reads: list[list[Part]] = [[Content("a")], [CallBegins(0, "f")], [CallArguments(0, '{"b"')], [Content("c")], []]
    for make in (chat, response, message):
        same(make, reads)
