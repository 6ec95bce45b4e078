"""The page's questions in the background."""

from collections.abc import Iterator

import pytest

from dashboard.asking import ChatQuestion, GatewayAddress, Volley, request_of
from tests.dashboard.samples import GATEWAY
from tests.dashboard.stand_in import WORDS, StandIn
from tests.waiting import wait_until
from workloads.example_chats import EXAMPLE_CHATS, ExampleChat

NOBODY = "http://127.0.0.1:1"


@pytest.fixture
def stand_in(redis_url: str) -> Iterator[StandIn]:
    with StandIn(redis_url) as server:
        yield server


@pytest.mark.parametrize("response", ["chatcmpl-0a-1", "cmpl-0a-1", "0a-1"])
def test_request_of(response: str) -> None:
    assert request_of(response) == "0a-1"


def answered(url: str, text: str) -> ChatQuestion:
    question = ChatQuestion(GatewayAddress(url), ExampleChat(text, 50))
    wait_until(lambda: question.ended_at is not None, "the answers")
    return question


def test_a_question_gathers_its_answer_in_the_background(stand_in: StandIn) -> None:
    question = answered(stand_in.url, "a story")
    assert (question.text, question.request, question.error) == ("".join(WORDS), f"{GATEWAY}-1", "")
    assert stand_in.asked[0]["model"] == "demo" and stand_in.asked[0]["max_tokens"] == 50


@pytest.mark.parametrize(
    ("url", "sentence"),
    [(NOBODY, f"{NOBODY} cannot be reached: "), ("http://127.0.0.1:999999", "--gateway: 'http://127.0.0.1:999999': ")],
)
def test_no_gateway_is_a_sentence(url: str, sentence: str) -> None:
    assert answered(url, "a story").error.startswith(sentence)


def test_a_volley_sends_every_prompt_once(stand_in: StandIn) -> None:
    volley = Volley(GatewayAddress(stand_in.url), [*EXAMPLE_CHATS, ExampleChat("refuse", 5)])
    wait_until(lambda: not volley.running, "the answers")
    assert (volley.answered, volley.failed, volley.error) == (20, 1, "the prompt is <too> long")
    sent = sorted(body["messages"][0]["content"] for body in stand_in.asked)
    assert sent == sorted([*(prompt.text for prompt in EXAMPLE_CHATS), "refuse"])
