"""Turns streams into answers: everything at once, or events while it comes. A shaper gives them the shape of an API."""

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple, Protocol

import msgspec

from contracts.messages.sampling import Finish
from contracts.scores import Scores
from gateway.output.parts import CallArguments, CallBegins, Content, OutputParser, Part, Reasoning
from gateway.output.plain import PlainText
from gateway.requests.reader import Reader
from gateway.requests.stream import Delta, Stream

KEEP_ALIVE = 12.0  # s of silence after which a comment keeps proxies from closing the connection
COMMENT = b": still working\n\n"
DONE = b"data: [DONE]\n\n"


class Call(NamedTuple):
    """Holds a whole call of a tool."""

    name: str
    arguments: str


class Answer:
    """Holds what has come of one choice, in the end all of it."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.token_ids: list[int] = []
        self.scores: Scores | None = None  # of these tokens, if the request wants them
        self.finish: Finish | None = None
        self.stop_reason: int | str | None = None
        self._scores: list[Scores] = []

    def add(self, parts: Iterable[Part], delta: Delta) -> None:
        """Adds what a read has brought."""
        self.parts += parts
        self.token_ids += delta.token_ids
        if delta.scores is not None:
            self._scores.append(delta.scores)
        if delta.finish is not None:
            self.finish, self.stop_reason = delta.finish, delta.stop_reason
            self.scores = Scores.joined(self._scores) if self._scores else None

    @property
    def content(self) -> str:
        """Returns the text of the answer itself."""
        return "".join(part.text for part in self.parts if isinstance(part, Content))

    @property
    def reasoning(self) -> str:
        """Returns what was thought."""
        return "".join(part.text for part in self.parts if isinstance(part, Reasoning))

    @property
    def calls(self) -> list[Call]:
        """Returns the calls of tools, in order."""
        names: dict[int, str] = {}
        arguments: dict[int, list[str]] = {}
        for part in self.parts:
            if isinstance(part, CallBegins):
                names[part.call], arguments[part.call] = part.name, []
            elif isinstance(part, CallArguments):
                arguments[part.call].append(part.text)
        return [Call(name, "".join(arguments[call])) for call, name in names.items()]


class Shaper(Protocol):
    """Gives one request's answers the shape of an API. Choices are numbered over all prompts of the request."""

    def chunks(self, choice: int, parts: Sequence[Part], delta: Delta, last: bool) -> AsyncIterator[bytes]:
        """Yields the events for what has come of a choice, often none; `last`: nothing more comes of any choice."""
        ...

    def quick(self, choice: int, parts: Sequence[Part], token_ids: Sequence[int]) -> bytes | None:
        """Returns what `chunks` would yield, all of it, where that can be made at once; else None, and does nothing.

        It is asked for what is not the end of a choice.
        """
        ...

    def text(self, choice: int, text: str, token_ids: Sequence[int]) -> bytes | None:
        """Returns what `quick` would for content of this text: nearly all tokens of most answers pass here."""
        ...

    def alive(self) -> bytes:
        """Returns what keeps a silent connection open."""
        ...

    def end(self) -> AsyncIterator[bytes]:
        """Yields the last events of the stream."""
        ...

    async def whole(self, answers: Sequence[Answer]) -> Any:
        """Returns the body that has all answers."""
        ...


class Way(Protocol):
    """Is a short way to the client, for what is whole and needs nobody to wait."""

    def open(self) -> bool:
        """Tells whether something can be written now: the answer has begun, and its client reads."""
        ...

    def write(self, part: bytes) -> object:
        """Writes events."""
        ...


def event(data: Mapping[str, Any]) -> bytes:
    """Returns `data` as one server-sent event."""
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


def parsed(parser: OutputParser, delta: Delta) -> Sequence[Part]:
    """Returns the parts that a delta completes, at the end all that are left."""
    parts = parser.push(delta.text)
    return parts if delta.finish is None else [*parts, *parser.flush(cut=delta.finish == "length")]


async def collect(streams: Sequence[Stream], parsers: Sequence[OutputParser], shaper: Shaper) -> Any:
    """Returns the whole answer. Raises `APIError`."""
    answers = [Answer() for _ in streams]
    open_choices = len(streams)
    with closing(Reader(streams, KEEP_ALIVE)) as reader:
        while open_choices:
            for index in await reader.wait():
                delta = streams[index].unread()
                open_choices -= delta.finish is not None
                answers[index].add(parsed(parsers[index], delta), delta)
    return await shaper.whole(answers)


async def events(
    streams: Sequence[Stream], parsers: Sequence[OutputParser], shaper: Shaper, way: Way
) -> AsyncGenerator[bytes, None]:
    """Yields the answer's events while it comes, but for those that could be written at once. Raises `APIError`."""

    def pass_on(index: int) -> bool:
        stream = streams[index]
        if not way.open() or not stream.goes_on:
            return False
        delta = stream.unread()
        if plain[index]:
            made = shaper.text(index, delta.text, delta.token_ids)
        else:
            parts = parsers[index].push(delta.text)
            made = shaper.quick(index, parts, delta.token_ids)
        if made is None:
            held[index] = (parsers[index].push(delta.text) if plain[index] else parts, delta)
            return False
        if made:
            way.write(made)
        return True

    plain = [isinstance(parser, PlainText) for parser in parsers]
    held: dict[int, tuple[Sequence[Part], Delta]] = {}  # what was read, and has to go the long way
    open_choices = len(streams)
    with closing(Reader(streams, KEEP_ALIVE, pass_on)) as reader:
        while open_choices:
            ready = await reader.wait()
            if not ready:
                yield shaper.alive()
            for index in ready:
                if index in held:
                    parts, delta = held.pop(index)
                else:
                    delta = streams[index].unread()
                    parts = parsed(parsers[index], delta)
                if delta.finish is None and (made := shaper.quick(index, parts, delta.token_ids)) is not None:
                    if made:
                        yield made
                    continue
                open_choices -= delta.finish is not None
                async for chunk in shaper.chunks(index, parts, delta, last=open_choices == 0):
                    yield chunk
    async for chunk in shaper.end():
        yield chunk
