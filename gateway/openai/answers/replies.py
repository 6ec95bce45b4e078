"""Turns streams into answers: everything at once, or events while it comes. A shaper gives them the shape of an API."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple, Protocol

import msgspec

from contracts.messages.sampling import Finish
from contracts.scores import Scores
from gateway.errors import APIError
from gateway.output.parts import CallArguments, CallBegins, Content, OutputParser, Part, Reasoning
from gateway.requests.reader import AnswerReader
from gateway.requests.stream import Delta, Stream

KEEP_ALIVE_S = 12.0  # silence after which a comment keeps proxies from closing the connection
KEEP_ALIVE_COMMENT = b": still working\n\n"
DONE_EVENT = b"data: [DONE]\n\n"


class Call(NamedTuple):
    """A whole call of a tool."""

    name: str
    arguments: str
    custom: bool = False  # the arguments are free text


class Answer:
    """The received part of one choice."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.token_ids: list[int] = []
        self.scores: Scores | None = None  # of these tokens, if the request wants them
        self.finish: Finish | None = None
        self.stop_reason: int | str | None = None
        self._scores: list[Scores] = []

    def add(self, parts: Iterable[Part], delta: Delta) -> None:
        self.parts += parts
        self.token_ids += delta.token_ids
        if delta.scores is not None:
            self._scores.append(delta.scores)
        if delta.finish is not None:
            self.finish, self.stop_reason = delta.finish, delta.stop_reason
            self.scores = Scores.joined(self._scores) if self._scores else None

    @property
    def content(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Content))

    @property
    def reasoning(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Reasoning))

    @property
    def calls(self) -> list[Call]:
        """Returns the calls of tools, in order."""
        begun: dict[int, CallBegins] = {}
        arguments: dict[int, list[str]] = {}
        for part in self.parts:
            if isinstance(part, CallBegins):
                begun[part.call], arguments[part.call] = part, []
            elif isinstance(part, CallArguments):
                arguments[part.call].append(part.text)
        return [Call(one.name, "".join(arguments[call]), one.custom) for call, one in begun.items()]


class Shaper(Protocol):
    """Gives one request's answers the shape of an API. Choices are numbered over all prompts of the request."""

    def chunks(self, choice: int, parts: Sequence[Part], delta: Delta, last: bool) -> bytes | AsyncIterator[bytes]:
        """Returns the events of new parts of a choice, often none; `last`: no choice has further parts.

        Returns bytes if they can be made at once, as in the middle of nearly all answers, and otherwise an iterator.
        The choice's next chunks are made after the iterator has ended.
        """
        ...

    def alive(self) -> bytes: ...

    def end(self) -> AsyncIterator[bytes]: ...

    def failure(self, error: APIError) -> bytes: ...

    async def whole(self, answers: Sequence[Answer]) -> Any: ...


class AnswerWriter(Protocol):
    """Writes one answer to its client."""

    def open(self) -> bool: ...

    def write(self, events: bytes) -> object: ...

    async def send(self, events: bytes) -> None: ...


def event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


def failure_events(error: APIError) -> bytes:
    return event(error.body()) + DONE_EVENT


def parsed(parser: OutputParser, delta: Delta) -> Sequence[Part]:
    parts = parser.push(delta.text)
    return parts if delta.finish is None else [*parts, *parser.flush(cut=delta.finish == "length")]


async def collect(streams: Sequence[Stream], parsers: Sequence[OutputParser], shaper: Shaper) -> Any:
    """Returns the whole answer. Raises `APIError`."""
    answers = [Answer() for _ in streams]
    open_choices = len(streams)
    with closing(AnswerReader(streams, KEEP_ALIVE_S)) as reader:
        while open_choices:
            for index in await reader.wait():
                delta = streams[index].unread()
                open_choices -= delta.finish is not None
                answers[index].add(parsed(parsers[index], delta), delta)
    return await shaper.whole(answers)


async def send_events(
    streams: Sequence[Stream], parsers: Sequence[OutputParser], shaper: Shaper, writer: AnswerWriter
) -> None:
    """Sends the answer's events as tokens come. Raises `APIError`.

    Events that are made at once are written in the reader's turn of the event loop, without waking this task.
    """
    open_choices = len(streams)
    awaiting: dict[int, AsyncIterator[bytes]] = {}  # events begun in a reader's turn, by choice

    def take(index: int) -> bytes | AsyncIterator[bytes]:
        nonlocal open_choices
        delta = streams[index].unread()
        open_choices -= delta.finish is not None
        return shaper.chunks(index, parsed(parsers[index], delta), delta, open_choices == 0)

    def pass_on(index: int) -> bool:
        stream = streams[index]
        if not writer.open() or not stream.goes_on:
            return False
        delta = stream.unread()  # not the last delta: the stream goes on
        made = shaper.chunks(index, parsers[index].push(delta.text), delta, False)
        if not isinstance(made, bytes):
            awaiting[index] = made
            return False
        if made:
            writer.write(made)
        return True

    with closing(AnswerReader(streams, KEEP_ALIVE_S, pass_on)) as reader:
        while open_choices:
            ready = await reader.wait()
            if not ready:
                await writer.send(shaper.alive())
            for index in ready:
                made = awaiting.pop(index) if index in awaiting else take(index)
                if not isinstance(made, bytes):
                    async for chunk in made:
                        await writer.send(chunk)
                elif made:
                    await writer.send(made)
    async for chunk in shaper.end():
        await writer.send(chunk)
