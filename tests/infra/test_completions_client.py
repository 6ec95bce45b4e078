"""The client of an endpoint, against a server that answers as the gateway does, and the parser of its streams."""

import json
from collections.abc import Iterator

import pytest

from contracts.errors import GatewayError
from infra.completions_client import MAX_RESPONSE_BYTES, CompletionEvents, CompletionsClient, StreamedChunk
from tests.dashboard.samples import GATEWAY
from tests.dashboard.stand_in import WORDS, StandIn

CHAT = "/v1/chat/completions"


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    with StandIn() as server:
        yield server


def asking(text: str) -> dict[str, object]:
    return {"model": "demo", "messages": [{"role": "user", "content": text}], "max_tokens": 50}


def test_an_answer_comes_in_pieces_with_its_id_and_its_tokens(stand_in: StandIn) -> None:
    endpoint = CompletionsClient(f"{stand_in.url}/v1/")
    assert endpoint.model() == "demo"
    chunks = list(endpoint.stream(CHAT, asking("a story")))
    assert [chunk.text for chunk in chunks if chunk.text] == list(WORDS)
    assert {chunk.response for chunk in chunks} == {f"chatcmpl-{GATEWAY}-1"}
    assert [chunk.tokens for chunk in chunks if chunk.tokens is not None] == [7]
    assert stand_in.asked[0]["stream"] and stand_in.asked[0]["max_tokens"] == 50


def test_completions_have_text_of_their_own(stand_in: StandIn) -> None:
    chunks = list(CompletionsClient(stand_in.url).stream("/v1/completions", {"prompt": [1], "max_tokens": 3}))
    assert [chunk.text for chunk in chunks] == ["w0", "w1", "w2", ""]


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        ("refuse", "the prompt is <too> long"),
        ("fail inside", "a worker was lost"),
        ("break off", "the answer broke off"),
    ],
)
def test_what_the_endpoint_says_is_the_error(stand_in: StandIn, question: str, sentence: str) -> None:
    with pytest.raises(GatewayError, match=f"^{sentence}$"):
        list(CompletionsClient(stand_in.url).stream(CHAT, asking(question)))


def test_an_answer_has_a_longest_time(stand_in: StandIn) -> None:
    with pytest.raises(GatewayError, match="the answer took longer than 0 s"):
        list(CompletionsClient(stand_in.url).stream(CHAT, asking("a story"), longest=0.0))


@pytest.mark.parametrize("url", ["ftp://a", "http://", "http://a:99999", "http://[::1", "http://a:0", ""])
def test_a_bad_url_is_named(url: str) -> None:
    with pytest.raises(GatewayError) as refused:
        CompletionsClient(url, "--gateway")
    assert str(refused.value) == f"--gateway: {url!r}: expected a URL such as http://127.0.0.1:8000"


def test_an_ipv6_address_needs_brackets() -> None:
    with pytest.raises(
        GatewayError, match=r"^--url: '::1:8000': an IPv6 address stands in brackets, such as http://\["
    ):
        CompletionsClient("::1:8000")
    assert CompletionsClient("[::1]:8000").url == "http://[::1]:8000"


def test_an_endpoint_that_is_not_there_is_named() -> None:
    with pytest.raises(GatewayError, match=r"^http://127\.0\.0\.1:1 cannot be reached: "):
        CompletionsClient("127.0.0.1:1").model()
    with pytest.raises(GatewayError, match=r"^http://a\.\.b cannot be reached: "):
        CompletionsClient("a..b").model()


def event(text: str) -> bytes:
    return b"data: " + json.dumps({"id": "1", "choices": [{"delta": {"content": text}}]}).encode() + b"\r\n\r\n"


def test_events_are_found_wherever_their_bytes_are_cut() -> None:
    said = b": hello\n\n" + event("fox \u00e9") + event("owl") + b"data:[DONE]\n\n"
    for size in (1, 7, len(said)):
        events = CompletionEvents()
        parts = (said[at : at + size] for at in range(0, len(said), size))
        assert [chunk for part in parts for chunk in events.feed(part)] == [
            StreamedChunk("1", "fox \u00e9", None, choices=1),
            StreamedChunk("1", "owl", None, choices=1),
        ]
        assert events.ended


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"data: {\n", "the endpoint sent an event that is not JSON"),
        (b"data: []\n", "the endpoint sent an event that is no part of an answer"),
        (b'data: {"choices": [{}]}\n', "the endpoint sent an event that is no part of an answer"),
        (b'data: {"error": "text"}\n', "the endpoint sent an event that is no part of an answer"),
        (b"data: " + bytes(MAX_RESPONSE_BYTES), f"the endpoint sent a line of more than {MAX_RESPONSE_BYTES} bytes"),
    ],
)
def test_what_is_no_stream_of_chunks_is_refused(data: bytes, sentence: str) -> None:
    with pytest.raises(GatewayError, match=f"^{sentence}$"):
        list(CompletionEvents().feed(data))
