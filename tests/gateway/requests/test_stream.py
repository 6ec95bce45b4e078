"""What a client reads of one sample: text, tokens and scores up to the answer's end, and what ended it."""

import pytest

from contracts.ids import AttemptKey, SampleKey
from contracts.messages.gateway import Emitted
from contracts.messages.job import Prompt
from contracts.messages.sampling import Finish, Limits, Sampling
from gateway.metrics.gateway_metrics import Metrics
from gateway.requests.sample import AdmittedPrompt, Sample
from gateway.requests.stream import Delta, Stream
from gateway.text.detokenizer import BytePieces
from gateway.text.stop import StopStrings
from tests.scores import scores_of

A, B, C, D = b"abcd"


def stream_of(**admitted: object) -> Stream:
    limits = Limits(100, stop_token_ids=(D, C))
    prompt = AdmittedPrompt(Prompt([5], 1), Sampling(1), limits, **admitted)  # type: ignore[arg-type]
    return Stream(Sample(SampleKey("r-1", 0), prompt, 9.0), BytePieces(chr).stream(), 0.0, True, Metrics("m", []))


def say(stream: Stream, *tokens: int, finish: Finish | None = None) -> tuple[Finish | None, bool]:
    key, index = AttemptKey("r-1", 0, 1), len(stream.sample.tokens)
    stream.sample.tokens += tokens
    return stream.take(Emitted(key, index, list(tokens), finish, scores=scores_of(tokens)), 1.0)


def test_each_read_has_the_tokens_and_scores_since_the_last() -> None:
    stream = stream_of(stops=StopStrings(["bb"]))
    say(stream, A)
    say(stream, A, B)
    held_back = Delta("aa", None, [A, A, B], scores_of([A, A, B]))
    assert stream.unread() == held_back
    say(stream, A, finish="length")
    assert stream.unread() == Delta("ba", "length", [A], scores_of([A]))


def test_tokens_behind_a_stop_string_count_as_never_made() -> None:
    stream = stream_of(stops=StopStrings(["bb"]))
    say(stream, A, B)
    assert say(stream, B, A, A, finish="length") == ("stop", True)
    assert stream.unread() == Delta("a", "stop", [A, B, B], scores_of([A, B, B]), "bb")
    assert stream.sample.tokens == [A, B, B]


@pytest.mark.parametrize(("token", "reason"), [(C, C), (D, None)])
def test_the_token_that_ends_an_answer_is_its_last_without_text(token: int, reason: int | None) -> None:
    stream = stream_of(stop_ids=(C,))
    assert say(stream, A, token, finish="stop") == ("stop", False)
    assert stream.unread() == Delta("a", "stop", [A, token], scores_of([A, token]), reason)


def test_tokens_without_text_are_read() -> None:
    stream = stream_of(stops=StopStrings(["abc"]))
    say(stream, A, B)
    assert stream.unread() == Delta("", None, [A, B], scores_of([A, B]))
