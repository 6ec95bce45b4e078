"""One reader per answer: it hears of every stream once until that is read, passes on what can be, and waits in vain."""

import asyncio

import pytest

from contracts.ids import AttemptKey, SampleKey
from contracts.messages.gateway import Emitted
from contracts.messages.job import Prompt
from contracts.messages.sampling import Limits, Sampling
from gateway.errors import failed
from gateway.metrics.gateway_metrics import Metrics
from gateway.requests.reader import AnswerReader
from gateway.requests.sample import AdmittedPrompt, Sample
from gateway.requests.stream import Stream
from gateway.text.detokenizer import BytePieces


def a_stream() -> Stream:
    prompt = AdmittedPrompt(Prompt([5], 1), Sampling(1), Limits(100))
    return Stream(Sample(SampleKey("r-1", 0), prompt, 9.0), BytePieces(chr).stream(), 0.0, True, Metrics("m", []))


def say(stream: Stream, text: str) -> None:
    stream.take(Emitted(AttemptKey("r-1", 0, 1), 0, [ord(sign) for sign in text]), 1.0)


async def test_news_of_several_streams_are_told_once_each() -> None:
    one, other = a_stream(), a_stream()
    say(one, "a")
    reader = AnswerReader([one, other], 9.0)
    say(one, "b")
    say(other, "c")
    assert await reader.wait() == [0, 1]
    assert (one.unread().text, other.unread().text) == ("ab", "c")
    waiting = asyncio.ensure_future(reader.wait())
    await asyncio.sleep(0)
    say(other, "d")
    assert await waiting == [1]
    reader.close()


async def test_what_is_passed_on_wakes_nobody_and_the_rest_does() -> None:
    stream, passed = a_stream(), list[str]()

    def pass_on(place: int) -> bool:
        if len(passed) < 2:
            passed.append(stream.unread().text)
            return True
        return False

    reader = AnswerReader([stream], 9.0, pass_on)
    waiting = asyncio.ensure_future(reader.wait())
    await asyncio.sleep(0)
    for text in ("a", "b", "c"):
        say(stream, text)
        await asyncio.sleep(0)
    assert await waiting == [0] and passed == ["a", "b"] and stream.unread().text == "c"
    reader.close()


async def test_tokens_of_one_turn_are_passed_on_together() -> None:
    stream, passed = a_stream(), list[str]()

    def pass_on(place: int) -> bool:
        passed.append(stream.unread().text)
        return True

    reader = AnswerReader([stream], 9.0, pass_on)
    waiting = asyncio.ensure_future(reader.wait())
    await asyncio.sleep(0)
    say(stream, "a")
    say(stream, "b")
    await asyncio.sleep(0)
    assert passed == ["ab"]
    waiting.cancel()
    reader.close()


async def test_a_bug_in_passing_on_reaches_whoever_waits() -> None:
    stream = a_stream()

    def pass_on(place: int) -> bool:
        raise ValueError("a bug")

    reader = AnswerReader([stream], 9.0, pass_on)
    waiting = asyncio.ensure_future(reader.wait())
    await asyncio.sleep(0)
    say(stream, "a")
    with pytest.raises(ValueError, match="a bug"):
        await waiting
    reader.close()


async def test_a_silence_ends_a_wait_also_behind_what_was_passed_on() -> None:
    stream = a_stream()
    reader = AnswerReader([stream], 0.05, lambda place: bool(stream.unread()))
    began = asyncio.get_running_loop().time()
    waiting = asyncio.ensure_future(reader.wait())
    asyncio.get_running_loop().call_later(0.03, say, stream, "a")
    assert await waiting == []
    assert asyncio.get_running_loop().time() - began >= 0.075
    assert await reader.wait() == []
    reader.close()


async def test_a_failure_comes_behind_the_tokens_before_it() -> None:
    stream = a_stream()
    reader = AnswerReader([stream], 9.0)
    say(stream, "a")
    stream.fail(failed("the end", "a_code"))
    assert await reader.wait() == [0] and stream.unread().text == "a"
    assert await reader.wait() == [0]
    with pytest.raises(Exception, match="the end"):
        stream.unread()
    reader.close()
