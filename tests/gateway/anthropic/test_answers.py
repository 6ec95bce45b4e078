"""Parts become Anthropic's events and whole answers, and the events add up to the whole as its client adds them up."""

from typing import Any, get_args

import msgspec
import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from contracts.messages.sampling import Finish
from gateway.anthropic.answers import MessageShape
from gateway.anthropic.events import THOUGHT_SIGNATURE, Event, MessageUsage
from gateway.output.parts import CallArguments, CallBegins, Content, Part
from tests.gateway.output.answers import ANSWERS

USAGE = MessageUsage(input_tokens=5, output_tokens=7, cache_read_input_tokens=3)
EVENTS: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def events(parts: list[Part], finish: Finish = "stop", stop: str | None = None, **more: Any) -> list[Event]:
    shape = MessageShape("1a-2", "demo", **more)
    return [
        *shape.begin(USAGE),
        *(event for part in parts for event in shape.take([part])),
        *shape.end(finish, stop, USAGE),
    ]


def whole(parts: list[Part], finish: Finish = "stop", stop: str | None = None, **more: Any) -> dict[str, Any]:
    shape = MessageShape("1a-2", "demo", **more)
    shape.take(parts)
    found: dict[str, Any] = msgspec.to_builtins(shape.whole(finish, stop, USAGE))
    return found


@pytest.mark.parametrize("name", ANSWERS)
def test_the_events_add_up_to_the_whole(name: str) -> None:
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for event in events(ANSWERS[name]):
        typed = EVENTS.validate_python(msgspec.to_builtins(event))
        snapshot = accumulate_event(event=typed, current_snapshot=snapshot, json_bufs=buffers)
    expected = Message.model_validate(whole(ANSWERS[name]))
    assert snapshot.to_dict() == expected.to_dict()


def test_every_event_is_of_a_kind_that_the_client_knows() -> None:
    known = {kind.model_fields["type"].annotation for kind in get_args(get_args(RawMessageStreamEvent)[0])}
    tags = {event.__struct_config__.tag for parts in ANSWERS.values() for event in events(parts)}
    assert tags == {get_args(literal)[0] for literal in known}


@pytest.mark.parametrize(
    ("parts", "finish", "stop", "reason"),
    [
        ([Content("a")], "stop", None, "end_turn"),
        ([Content("a")], "length", None, "max_tokens"),
        ([Content("a")], "stop", "END", "stop_sequence"),
        (ANSWERS["a call"], "stop", None, "tool_use"),
        (ANSWERS["a call"], "length", None, "max_tokens"),
    ],
)
def test_why_an_answer_ended(parts: list[Part], finish: Finish, stop: str | None, reason: str) -> None:
    answer = whole(parts, finish, stop)
    assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, stop)
    (delta,) = [event for event in msgspec.to_builtins(events(parts, finish, stop)) if event["type"] == "message_delta"]
    assert delta["delta"] == {"stop_reason": reason, "stop_sequence": stop, "stop_details": None}
    assert delta["usage"] == answer["usage"] == msgspec.to_builtins(USAGE)


def test_the_ids_of_calls_differ() -> None:
    ids = [block["id"] for block in whole(ANSWERS["everything"])["content"] if block["type"] == "tool_use"]
    assert ids == ["toolu_1a-2_0", "toolu_1a-2_1"]


def test_arguments_that_were_cut_off_are_kept_as_text() -> None:
    parts: list[Part] = [CallBegins(0, "weather"), CallArguments(0, '{"city": "Bo')]
    assert whole(parts, "length")["content"][0]["input"] == {"INVALID_JSON": '{"city": "Bo'}


def test_thoughts_can_be_hidden() -> None:
    thoughts, text = whole(ANSWERS["thoughts and text"], hides_thoughts=True)["content"]
    assert thoughts == {"type": "thinking", "thinking": "", "signature": THOUGHT_SIGNATURE} and text["text"] == "Hello"
    assert "hm" not in str(events(ANSWERS["thoughts and text"], hides_thoughts=True))
