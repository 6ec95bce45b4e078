"""The page's own HTTP client and its questions in the background."""

import time
from collections.abc import Callable, Iterator

import pytest

from core.errors import GatewayError
from dashboard.asking import Question, Volley
from dashboard.completions import first_model, request_of, stream_chat
from dashboard.prompts import TWENTY, Prompt
from tests.dashboard.samples import GATEWAY
from tests.dashboard.stand_in import WORDS, StandIn

NOBODY = "http://127.0.0.1:1"


@pytest.fixture
def stand_in(redis_url: str) -> Iterator[StandIn]:
    with StandIn(redis_url) as server:
        yield server


def wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_pieces_come_with_the_id_of_their_response(stand_in: StandIn) -> None:
    pieces = list(stream_chat(stand_in.url, first_model(stand_in.url), "a story", 50))
    assert "".join(piece.text for piece in pieces) == "".join(WORDS)
    assert {request_of(piece.response) for piece in pieces} == {f"{GATEWAY}-1"}
    assert stand_in.asked[0]["model"] == "demo" and stand_in.asked[0]["max_tokens"] == 50


@pytest.mark.parametrize("response", ["chatcmpl-0a-1", "cmpl-0a-1", "0a-1"])
def test_request_of(response: str) -> None:
    assert request_of(response) == "0a-1"


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        ("refuse", "the prompt is <too> long"),
        ("fail inside", "a worker was lost"),
        ("break off", "the answer broke off"),
    ],
)
def test_what_the_gateway_says_is_what_the_page_says(stand_in: StandIn, question: str, sentence: str) -> None:
    with pytest.raises(GatewayError, match=sentence):
        list(stream_chat(stand_in.url, "demo", question, 50))


@pytest.mark.parametrize("url", [NOBODY, "http://127.0.0.1:999999", "nonsense"])
def test_no_gateway_is_a_sentence(url: str) -> None:
    with pytest.raises(GatewayError, match=r"does not answer|no URL"):
        first_model(url)


def test_a_question_gathers_its_answer_in_the_background(stand_in: StandIn) -> None:
    question = Question(stand_in.url, Prompt("a story", 50))
    wait_until(lambda: question.ended_at is not None)
    assert (question.text, question.request, question.error) == ("".join(WORDS), f"{GATEWAY}-1", "")
    refused = Question(stand_in.url, Prompt("refuse", 50))
    wait_until(lambda: refused.ended_at is not None)
    assert refused.error == "the prompt is <too> long"


def test_a_volley_sends_every_prompt_once(stand_in: StandIn) -> None:
    volley = Volley(stand_in.url, [*TWENTY, Prompt("refuse", 5)])
    wait_until(lambda: not volley.running)
    assert (volley.answered, volley.failed, volley.error) == (20, 1, "the prompt is <too> long")
    sent = sorted(body["messages"][0]["content"] for body in stand_in.asked)
    assert sent == sorted([*(prompt.text for prompt in TWENTY), "refuse"])


def test_a_volley_without_a_gateway_ends() -> None:
    volley = Volley(NOBODY, TWENTY)
    wait_until(lambda: not volley.running)
    assert volley.failed == 20 and "does not answer" in volley.error
