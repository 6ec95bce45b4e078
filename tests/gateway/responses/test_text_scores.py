"""The log-probabilities of a text are those of its tokens, whatever comes between, and however it is cut."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.output.parts import CallArguments, CallBegins, Content, Part, Reasoning
from gateway.responses.items import TextLogprob
from gateway.responses.text_scores import TextScores
from tests.gateway.responses.test_tools import CALL
from tests.gateway.running import Running


def tokens(*pieces: str | bytes) -> list[TextLogprob]:
    found = []
    for number, piece in enumerate(pieces):
        data = piece if isinstance(piece, bytes) else piece.encode()
        found.append(TextLogprob(token=repr(piece), bytes=list(data), logprob=-float(number), top_logprobs=[]))
    return found


def test_thoughts_calls_and_markers_are_left_out() -> None:
    scores = TextScores()
    made = tokens("<think>", "Hm", ".", "</think>", " Yes", ",", " it", " is", "<call>", "now", "{}", "</call>", "End")
    scores.add(made)
    parts: list[Part] = [Reasoning("Hm."), Content("Yes, it is"), CallBegins(0, "now"), CallArguments(0, "{}")]
    assert scores.of([*parts, Content("End")]) == [*made[4:8], made[12]]


@given(st.text(min_size=1, max_size=40), st.data())
def test_text_that_is_all_of_the_answer_has_all_tokens_once(text: str, data: Any) -> None:
    whole = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(whole) - 1)), max_size=8)))
    made = tokens(*(whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True) if a < b))
    places = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=5)))
    pieces = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True) if a < b]
    scores, found = TextScores(), []
    scores.add(made)
    for piece in pieces:
        found += scores.of([Content(piece)])
    assert found == made


async def test_a_response_tells_how_likely_its_text_was(running: Running) -> None:
    running.text = "Hé 🙂"
    ids = running.tokenizer.encode(running.text, special=False)
    asked: Any = {"model": "tiny", "input": "Hi!", "top_logprobs": 2}
    whole: Any = await running.openai.responses.create(**asked, include=["message.output_text.logprobs"])
    (part,) = whole.output[0].content
    assert [one.logprob for one in part.logprobs] == [-token / 8 for token in ids], "without the end"
    assert bytes(byte for one in part.logprobs for byte in one.bytes).decode() == part.text
    assert [[top.logprob for top in one.top_logprobs] for one in part.logprobs] == [
        [-token / 8, -(token + 1) / 8] for token in ids
    ]
    stream: Any = await running.openai.responses.create(**asked, stream=True)
    events = [event async for event in stream]
    told = [one.logprob for event in events if event.type == "response.output_text.delta" for one in event.logprobs]
    assert told == [-token / 8 for token in ids]
    assert [one.logprob for one in events[-1].response.output[0].content[0].logprobs] == told


@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_no_text_is_not_told_of(calling: Running, stream: bool) -> None:
    calling.text = f"<think>I think of this.</think>Well, I ask. {CALL}"
    response: Any = await calling.openai.responses.create(
        model="calling",
        input="Hi!",
        top_logprobs=0,
        include=["message.output_text.logprobs"],
        tools=[{"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}],
        stream=stream,
    )
    if stream:
        response = [event async for event in response][-1].response
    (part,) = response.output[1].content
    told = bytes(byte for one in part.logprobs for byte in one.bytes).decode()
    assert part.text.strip() == "Well, I ask." and part.text in told and len(told) <= len(part.text) + 8


def test_a_token_of_two_parts_comes_with_the_first() -> None:
    scores, made = TextScores(), tokens("ab", "cd", "e")
    scores.add(made)
    assert scores.of([Content("abc")]) == made[:2] and scores.of([Content("de")]) == made[2:]


@pytest.mark.parametrize("rewritten", [True, False])
def test_content_behind_a_call_is_found_however_its_arguments_were_cut(rewritten: bool) -> None:
    scores, made = TextScores(), tokens("<f>", 'a"', 'b"', "</f>", "End")
    said = ['{"x": "a\\"', 'b\\""}'] if rewritten else ['a"', 'b"']
    parts = [Content("End")]
    scores.add(made[:-1])
    assert scores.of([CallBegins(0, "f"), *(CallArguments(0, one) for one in said)]) == []
    scores.add(made[-1:])
    assert scores.of(parts) == made[-1:]


class Looks(bytearray):
    """Bytes that count how often something is looked for in them."""

    looked = 0

    def find(self, *args: Any) -> int:
        self.looked += 1
        return super().find(*args)


def test_arguments_that_a_format_rewrites_are_looked_for_once() -> None:
    """Else each piece of them would go through all tokens before it."""
    scores = TextScores()
    scores._bytes = looks = Looks(b"x" * 100_000)
    scores.of([CallBegins(0, "f"), *[CallArguments(0, 'a\\"')] * 1000, CallBegins(1, "f")])
    assert looks.looked <= 3
