"""Turns streams into answers: everything at once, or server-sent events while it comes."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from core.messages import Finish
from core.tasks import child
from gateway.openai.answers import Answers
from gateway.requests.stream import Delta, Stream

KEEP_ALIVE = 12.0  # s of silence after which a comment keeps proxies from closing the connection
COMMENT = b": still working\n\n"
DONE = b"data: [DONE]\n\n"


def event(data: Mapping[str, Any]) -> bytes:
    """Returns `data` as one server-sent event."""
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


async def deltas(streams: Sequence[Stream]) -> AsyncGenerator[tuple[int, Delta] | None, None]:
    """Yields what comes, with the index of its choice, to the end of all; None after a silence. Raises `APIError`."""
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


async def collect(streams: Sequence[Stream], answers: Answers) -> dict[str, Any]:
    """Returns the whole answer. Raises `APIError`."""
    texts: list[list[str]] = [[] for _ in streams]
    finishes: dict[int, Finish] = {}
    async with aclosing(deltas(streams)) as coming:
        async for item in coming:
            if item is None:
                continue
            index, delta = item
            texts[index].append(delta.text)
            if delta.finish is not None:
                finishes[index] = delta.finish
    return answers.whole(["".join(parts) for parts in texts], [finishes[index] for index in range(len(streams))])


async def events(streams: Sequence[Stream], answers: Answers) -> AsyncGenerator[bytes, None]:
    """Yields the answer's events while it comes. Raises `APIError`."""
    begun: set[int] = set()
    open_choices = len(streams)
    async with aclosing(deltas(streams)) as coming:
        async for item in coming:
            if item is None:
                yield COMMENT
                continue
            index, delta = item
            if index not in begun and (first := answers.first(index)) is not None:
                yield event(first)
            begun.add(index)
            if delta.text:
                yield event(answers.text(index, delta.text))
            if delta.finish is not None:
                open_choices -= 1
                yield event(answers.finish(index, delta.finish, last=open_choices == 0))
    if (usage := answers.last()) is not None:
        yield event(usage)
    yield DONE
