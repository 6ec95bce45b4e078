"""Turns streams into answers: everything at once, or events while it comes. A shaper gives them the shape of an API."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple, Protocol

import msgspec

from core.messages.sampling import Finish
from core.process.tasks import child
from core.scores import Scores
from gateway.output.parts import CallArguments, CallBegins, Content, OutputParser, Part, Reasoning
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

    def alive(self) -> bytes:
        """Returns what keeps a silent connection open."""
        ...

    def end(self) -> AsyncIterator[bytes]:
        """Yields the last events of the stream."""
        ...

    async def whole(self, answers: Sequence[Answer]) -> Any:
        """Returns the body that has all answers."""
        ...


def event(data: Mapping[str, Any]) -> bytes:
    """Returns `data` as one server-sent event."""
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


async def deltas(streams: Sequence[Stream]) -> AsyncGenerator[tuple[int, Delta] | None, None]:
    """Yields what comes, with the index of its choice, to the end of all; None after a silence. Raises `APIError`."""
    if len(streams) == 1:  # as most often: no task is needed to wait for it
        delta = None
        while delta is None or delta.finish is None:
            delta = await streams[0].read(KEEP_ALIVE)
            yield None if delta is None else (0, delta)
        return
    reads = {child(stream.read(KEEP_ALIVE)): index for index, stream in enumerate(streams)}
    try:
        while reads:
            done, _ = await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
            for read in done:
                index = reads.pop(read)
                delta = read.result()
                if delta is None or delta.finish is None:
                    reads[child(streams[index].read(KEEP_ALIVE))] = index
                yield None if delta is None else (index, delta)
    finally:
        for read in reads:
            read.cancel()
        await asyncio.gather(*reads, return_exceptions=True)


def parsed(parser: OutputParser, delta: Delta) -> Sequence[Part]:
    """Returns the parts that a delta completes, at the end all that are left."""
    parts = parser.push(delta.text)
    return parts if delta.finish is None else [*parts, *parser.flush()]


async def collect(streams: Sequence[Stream], parsers: Sequence[OutputParser], shaper: Shaper) -> Any:
    """Returns the whole answer. Raises `APIError`."""
    answers = [Answer() for _ in streams]
    async with aclosing(deltas(streams)) as coming:
        async for item in coming:
            if item is not None:
                index, delta = item
                answers[index].add(parsed(parsers[index], delta), delta)
    return await shaper.whole(answers)


async def events(
    streams: Sequence[Stream], parsers: Sequence[OutputParser], shaper: Shaper
) -> AsyncGenerator[bytes, None]:
    """Yields the answer's events while it comes. Raises `APIError`."""
    open_choices = len(streams)
    async with aclosing(deltas(streams)) as coming:
        async for item in coming:
            if item is None:
                yield shaper.alive()
                continue
            index, delta = item
            open_choices -= delta.finish is not None
            parts = parsed(parsers[index], delta)
            async for chunk in shaper.chunks(index, parts, delta, last=open_choices == 0):
                yield chunk
    async for chunk in shaper.end():
        yield chunk
