"""Parts become the Responses API's events and whole answers, and the client adds the events up to the whole."""

from typing import Any

import msgspec
import pytest
from openai._types import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from contracts.messages.sampling import Finish
from gateway.output.parts import Content, Part, Reasoning
from gateway.responses.answers import ResponseShape
from gateway.responses.events import (
    Event,
    ResponseAnswer,
    ResponseInputDetails,
    ResponseOutputDetails,
    ResponseUsage,
)
from gateway.responses.items import TextLogprob
from gateway.responses.schemas import ReasoningConfig, TextConfig
from tests.gateway.output.answers import ANSWERS

EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
USAGE = ResponseUsage(
    input_tokens=5,
    input_tokens_details=ResponseInputDetails(cached_tokens=3),
    output_tokens=7,
    output_tokens_details=ResponseOutputDetails(reasoning_tokens=0),
    total_tokens=12,
)
EMPTY = ResponseAnswer(
    id="resp_1",
    created_at=1,
    model="demo",
    status="in_progress",
    output=[],
    temperature=1.0,
    top_p=1.0,
    store=True,
    tools=[],
    tool_choice="auto",
    parallel_tool_calls=True,
    text=TextConfig(),
    reasoning=ReasoningConfig(),
)


def events(parts: list[Part], finish: Finish = "stop") -> list[Event]:
    shape = ResponseShape("1a-2", EMPTY)
    made = [*shape.begin(), *(event for part in parts for event in shape.take([part])), *shape.end(finish)]
    return [*made, *shape.ended(shape.whole(finish, USAGE))]


def whole(parts: list[Part], finish: Finish = "stop") -> dict[str, Any]:
    shape = ResponseShape("1a-2", EMPTY)
    shape.take(parts)
    answer: dict[str, Any] = msgspec.to_builtins(shape.whole(finish, USAGE))
    return answer


@pytest.mark.parametrize("name", ANSWERS)
def test_the_events_add_up_to_the_whole(name: str) -> None:
    state: Any = ResponseStreamState(input_tools=omit, text_format=omit)
    found: Any = None
    for event in events(ANSWERS[name]):
        for told in state.handle_event(EVENTS.validate_python(msgspec.to_builtins(event))):
            found = told
    added = {number: item.to_dict() for number, item in state._completed_output.items()}
    expected: Any = Response.model_validate(whole(ANSWERS[name]))
    assert list(added.values()) == [item.to_dict() for item in expected.output]
    snapshot = state._ResponseStreamState__current_snapshot
    for item, finished in zip(snapshot.output, expected.output, strict=True):
        if item.type == "message":
            assert item.content[0].text == finished.content[0].text, "added up from deltas"
        elif item.type == "function_call":
            assert item.arguments == finished.arguments
    assert found.type == "response.completed" and found.response.output_text == expected.output_text


@pytest.mark.parametrize("finish", ["stop", "length"])
@pytest.mark.parametrize("name", ANSWERS)
def test_events_are_numbered_and_their_indexes_hold(name: str, finish: Finish) -> None:
    made = msgspec.to_builtins(events(ANSWERS[name], finish))
    assert [event["sequence_number"] for event in made] == list(range(len(made)))
    open_item: dict[str, Any] | None = None
    output: list[dict[str, Any]] = []
    for event in made:
        if event["type"] == "response.output_item.added":
            assert open_item is None and event["output_index"] == len(output)
            open_item = event["item"]
        elif event["type"] == "response.output_item.done":
            assert open_item is not None and event["item"]["id"] == open_item["id"]
            output.append(event["item"])
            open_item = None
        elif "item_id" in event:
            assert open_item is not None and event["item_id"] == open_item["id"]
            assert event["output_index"] == len(output)
    assert open_item is None and made[-1]["response"]["output"] == output == whole(ANSWERS[name], finish)["output"]


def test_what_was_cut_off_says_so() -> None:
    answer = whole(ANSWERS["thoughts and text"], "length")
    assert answer["status"] == "incomplete" and answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["status"] for item in answer["output"]] == ["completed", "incomplete"]
    assert msgspec.to_builtins(events(ANSWERS["text"], "length"))[-1]["type"] == "response.incomplete"


def test_a_stream_that_fails_ends_with_what_was_done() -> None:
    shape = ResponseShape("1a-2", EMPTY)
    shape.begin()
    shape.take([Reasoning("hm"), Content("Hel")])
    (last,) = msgspec.to_builtins(shape.failed("server_error", "a sentence"))
    assert last["type"] == "response.failed" and last["response"]["status"] == "failed"
    assert last["response"]["error"] == {"code": "server_error", "message": "a sentence"}
    assert [item["type"] for item in last["response"]["output"]] == ["reasoning"]
    assert EVENTS.validate_python(last).type == "response.failed"


def test_log_probabilities_come_with_their_text_once() -> None:
    shape = ResponseShape("1a-2", EMPTY)
    scores = [TextLogprob(token=word, bytes=list(word.encode()), logprob=-0.5, top_logprobs=[]) for word in "abcd"]
    made = [
        *shape.take([Reasoning("hm")]),
        *shape.take([Content("a"), Content("b")], scores[:2]),
        *shape.take([Content("cd")], scores[2:]),
    ]
    deltas = [event["logprobs"] for event in msgspec.to_builtins(made) if "output_text.delta" in event["type"]]
    assert [[one["token"] for one in some] for some in deltas] == [["a", "b"], [], ["c", "d"]]
    _, item = msgspec.to_builtins(shape.whole("stop", USAGE))["output"]
    assert item["content"][0]["logprobs"] == msgspec.to_builtins(scores)


def test_ids_differ() -> None:
    output = whole(ANSWERS["everything"])["output"]
    assert len({item["id"] for item in output}) == len(output) == 5
    assert [item["call_id"] for item in output if item["type"] == "function_call"] == ["call_1a-2_0", "call_1a-2_1"]
