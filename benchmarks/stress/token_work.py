"""Measures the worst cost of a token for a gateway's event loop, by the features of its request.

    python -m benchmarks.stress.token_work [--tokens 4000]

In one process, without sockets: texts go through the search for stop strings, answers through the readers of tools,
scores through the encoders of log-probabilities. Each input is the worst that the API admits. Times are of one thread's
processor, in microseconds: of a token on average, of the first tenth and of the last; the two are equal where the cost
does not grow with the answer.
"""

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

import msgspec

from contracts.scores import Scores, TokenScore
from gateway.openai.answers.logprobs import CompletionLogprobsEncoder, ScoredTokens, TokenNames, chat_logprobs
from gateway.output.formats.known_formats import TOOL_FORMATS
from gateway.output.reader import OutputReader, ReadingParser
from gateway.output.tools import Tool, ToolUse
from gateway.text.stop import StopSearch, StopStrings
from gateway.text.token_bytes import TokenBytes

Step = Callable[[int], object]
"""Does what one token needs, by its number."""

STOP_LISTS = {
    "stop strings: a * 255 + b, c + a * 255, …": ["a" * 255 + "b"] + [chr(99 + n) + "a" * 255 for n in range(15)],
    "stop strings: a * 255 + b, a * 255 + c, …": ["a" * 255 + chr(98 + n) for n in range(16)],
    "stop strings: a * 255 + b, a * 254 + b, …": ["a" * (255 - n) + "b" for n in range(16)],
}
TOKEN_TEXTS = {"a": ("a",), "8 a": ("a" * 8,), "256 a, then z": (*["a" * 8] * 32, "z"), "128 a": ("a" * 128,)}
TEXT_PIECES = (
    "a",
    " ",
    "\n",
    "<",
    "[",
    "{",
    '"',
    "\\",
    "(",
    "<tool_call>",
    "[TOOL_CALLS]",
    "<function=f>",
    "<|",
    "<｜",
)
TOP_LOGPROBS = 20  # alternatives of each token


def stops() -> Iterator[tuple[str, Step]]:
    for name, strings in STOP_LISTS.items():
        for what, texts in TOKEN_TEXTS.items():
            search = StopSearch(StopStrings(strings))
            yield f"{name}, tokens: {what}", partial(_push, search, texts)


def _push(search: StopSearch, texts: tuple[str, ...], number: int) -> object:
    return search.push(texts[number % len(texts)])


def readers() -> Iterator[tuple[str, Step]]:
    use = ToolUse((Tool("f", {"properties": {"a": {"type": "string"}}}),))
    for family in TOOL_FORMATS:
        for piece in TEXT_PIECES:
            reader = OutputReader()
            parser = ReadingParser(reader, family.read(reader, use, ""))
            yield f"{family.name}, tokens: {piece!r}", lambda _, parser=parser, piece=piece: parser.push(piece)  # type: ignore[misc]


def scores() -> Iterator[tuple[str, Step]]:
    names = TokenNames(TokenBytes(lambda token: f"token{token}", lambda token: True, True), as_ids=False)
    top = [(number, -float(number)) for number in range(TOP_LOGPROBS)]
    one = ScoredTokens([1], Scores.of([TokenScore(-1.5, 1, top)], TOP_LOGPROBS))
    shape = CompletionLogprobsEncoder(TOP_LOGPROBS, names, lambda token: True)
    chats = f"log-probabilities of chats, top {TOP_LOGPROBS}"
    yield chats, lambda _: _finished(chat_logprobs(one, TOP_LOGPROBS, names))
    yield f"log-probabilities of completions, top {TOP_LOGPROBS}", lambda _: _finished(shape.of(one))


def _finished(work: object) -> bytes:
    try:
        work.send(None)  # type: ignore[attr-defined]
    except StopIteration as stop:
        return msgspec.json.encode(stop.value)
    raise AssertionError("it waits")


def line(name: str, step: Step, tokens: int) -> tuple[float, str]:
    tenth, ended = tokens // 10, [time.thread_time()]
    for number in range(10 * tenth):
        step(number)
        if number % tenth == tenth - 1:
            ended.append(time.thread_time())
    each = [1e6 * (after - before) / tenth for before, after in pairwise(ended)]
    mean = sum(each) / len(each)
    return mean, f"{mean:8.1f} {each[0]:8.1f} {each[-1]:8.1f}  {name}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stress.token_work", description=__doc__)
    parser.add_argument("--tokens", type=int, default=4000, help="of each answer")
    tokens = parser.parse_args().tokens
    gc.disable()  # as good as in a gateway, whose heap is settled
    print("    mean    first     last  us a token")
    for name, step in [*stops(), *scores()]:
        print(line(name, step, tokens)[1], flush=True)
    for _, said in sorted((line(name, step, tokens) for name, step in readers()), reverse=True)[:10]:
        print(said)
    return 0


if __name__ == "__main__":
    sys.exit(main())
