"""The load generator against a server that answers as the gateway does."""

import asyncio
from collections.abc import Iterator, Sequence

import msgspec
import pytest
import uvloop

from infra.process.ending import end
from infra.process.tasks import child
from launcher.bench.sender import Sender, StreamedAnswer, connections_to
from launcher.instance.endpoint import ClientEndpoint
from tests.dashboard.stand_in import StandIn
from workloads.outcome import RequestOutcome
from workloads.request import NextTurn, PlannedRequest, Span, TimedRequest

NEVER_ANSWERED = PlannedRequest(5, spans=(Span(1, 3),))
"""With a vocabulary of one id it is zeros, which the server leaves without an answer."""


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    with StandIn() as server:
        yield server


def sent(url: str, requests: Sequence[TimedRequest], linger_s: float | None = None) -> list[RequestOutcome]:
    outcomes = list[RequestOutcome]()

    async def send() -> None:
        async with connections_to(ClientEndpoint(url, "", ""), timeout_s=60.0) as connections:
            sender = Sender(connections, "demo", 1, outcomes.append)
            await sender.open_load(requests, linger_s)
            assert (sender.sent, sender.ended) == (len(outcomes), len(outcomes))

    uvloop.run(send())
    return outcomes


def closed(url: str, seconds: float) -> list[RequestOutcome]:
    """Returns the outcomes of 20 requests of three clients, as far as the seconds hold them."""
    outcomes = list[RequestOutcome]()

    async def send() -> None:
        async with connections_to(ClientEndpoint(url, "", ""), timeout_s=60.0) as connections:
            sender = Sender(connections, "demo", 1, outcomes.append)
            await sender.closed_load(iter([PlannedRequest(5, ("Hello!",))] * 20), 3, seconds)

    uvloop.run(send())
    return outcomes


def test_every_request_is_sent_at_its_time_and_timed(stand_in: StandIn) -> None:
    outcomes = sent(stand_in.url, [TimedRequest(0.005 * n, PlannedRequest(9, ("Hello!",))) for n in range(15)])
    assert len(outcomes) == len(stand_in.asked) == 15
    assert {(body["max_tokens"], body["model"]) for body in stand_in.asked} == {(9, "demo")}
    for outcome in outcomes:
        assert outcome.error == "" and outcome.timings is not None and outcome.sent_s >= outcome.due_s
        assert outcome.timings.output_tokens == 7 and 0 < outcome.timings.ttft_ms <= outcome.timings.e2e_ms
        # Pieces of an answer may arrive together, but each is a gap.
        assert len(outcome.gaps_ms) == 6
        assert sum(outcome.gaps_ms) == pytest.approx(outcome.timings.e2e_ms - outcome.timings.ttft_ms)


@pytest.mark.parametrize(
    ("question", "error"),
    [
        ("refuse", "status 400: the prompt is <too> long"),
        ("fail inside", "a worker was lost"),
        ("break off", "broke off"),
        ("no stream", "the answer is no stream of events"),
        ("no choices", "the answer has no choices"),
        ("count below zero", "the server counts less than no tokens"),
    ],
)
def test_a_failure_is_an_error_not_a_figure(stand_in: StandIn, question: str, error: str) -> None:
    (outcome,) = sent(stand_in.url, [TimedRequest(0.0, PlannedRequest(5, (question,)))])
    assert outcome.timings is None and error in outcome.error


def test_an_endpoint_that_is_away_is_an_error() -> None:
    (outcome,) = sent("http://127.0.0.1:1", [TimedRequest(0.0, PlannedRequest(5, ("Hello!",)))])
    assert "cannot be reached: Connection refused" in outcome.error


def test_requests_that_are_not_answered_in_time_are_cut_off_and_counted(stand_in: StandIn) -> None:
    outcomes = sent(stand_in.url, [TimedRequest(0.0, NEVER_ANSWERED)] * 2, linger_s=0.0)
    assert [outcome.error for outcome in outcomes] == ["no answer in time"] * 2


def test_what_is_in_progress_when_a_load_is_interrupted_has_no_outcome(stand_in: StandIn) -> None:
    outcomes = list[RequestOutcome]()

    async def send() -> None:
        async with connections_to(ClientEndpoint(stand_in.url, "", ""), timeout_s=60.0) as connections:
            sender = Sender(connections, "demo", 1, outcomes.append)
            load = [TimedRequest(0.0, NEVER_ANSWERED), TimedRequest(0.0, PlannedRequest(9, ("Hello!",)))]
            sending = child(sender.open_load([*load, TimedRequest(600.0, NEVER_ANSWERED)]))
            while not outcomes:
                await asyncio.sleep(0.01)
            await end([sending])
            assert (sender.sent, sender.ended) == (2, 1)

    uvloop.run(send())
    assert [outcome.error for outcome in outcomes] == [""]


def test_clients_of_a_closed_load_wait_for_their_answers(stand_in: StandIn) -> None:
    outcomes = closed(stand_in.url, seconds=60.0)
    assert len(outcomes) == 20 and {outcome.error for outcome in outcomes} == {""}
    moments = sorted([(each.sent_s, 1) for each in outcomes] + [(each.ended_s, -1) for each in outcomes])
    in_progress = [sum(change for _, change in moments[: n + 1]) for n in range(len(moments))]
    assert max(in_progress) <= 3


def test_no_request_is_sent_when_the_seconds_are_over(stand_in: StandIn) -> None:
    assert not closed(stand_in.url, seconds=0.0) and not stand_in.asked


def test_later_turns_are_sent_behind_their_answers_with_the_messages_before_them(stand_in: StandIn) -> None:
    second = PlannedRequest(9, ("Hello!", "Hi.", "And now?"))
    outcomes = sent(stand_in.url, [TimedRequest(0.0, PlannedRequest(9, ("Hello!",), then=NextTurn(0.02, second)))])
    first, later = sorted(outcomes, key=lambda each: each.due_s)
    assert later.due_s >= first.ended_s + 0.02 and later.sent_s >= later.due_s
    roles = [[message["role"] for message in body["messages"]] for body in stand_in.asked]
    assert roles == [["user"], ["user", "assistant", "user"]]


def test_a_conversation_ends_with_the_first_answer_that_is_not_whole(stand_in: StandIn) -> None:
    turn = PlannedRequest(9, ("break off",), then=NextTurn(0.0, PlannedRequest(9, ("Hello!",))))
    assert len(sent(stand_in.url, [TimedRequest(0.0, turn)])) == len(stand_in.asked) == 1


def test_an_answer_lasts_until_its_end_also_if_its_last_token_has_no_text() -> None:
    answer = StreamedAnswer()
    events: list[dict[str, object]] = [
        {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"delta": {"content": "a"}}]},
        {"choices": [{"delta": {"content": "b"}}]},
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"completion_tokens": 3}},
    ]
    for at, event in enumerate(events):
        answer.feed(b"data: %s\n\n" % msgspec.json.encode(event), float(at))
    answer.feed(b"data: [DONE]\n\n", 9.0)
    answer.check()
    assert (answer.pieces, answer.last) == ([1.0, 2.0], 3.0)
