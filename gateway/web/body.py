"""Reads and parses the body of a request, bounded in size, in time, and in what it holds up."""

import asyncio
from collections.abc import Callable
from email.message import Message
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request

from gateway.errors import APIError, invalid, unavailable
from gateway.web.json_bounds import MAX_OBJECTS, PIECE_BYTES, JSONCounts

BODY_TIMEOUT_S = 30.0  # s in which a body has to be here
INLINE_BODY_BYTES = 16 << 10  # bytes that are parsed on the event loop, in half a millisecond
JSON_CHARSETS = {"utf-8", "utf8", "us-ascii", "ascii"}  # JSON is UTF-8, of which ASCII is a part

Body = TypeVar("Body")


class BodyRoom:
    """Counts the bytes of bodies that are being read, of all requests together."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.held = 0

    def take(self, count: int) -> None:
        """Counts bytes that have come. Raises `APIError` (503) if there is no room for them."""
        if self.held + count > self._most:
            message = f"bodies of {self.held} bytes are being read, and {self._most} are allowed"
            raise unavailable(message, "too_many_bodies")
        self.held += count

    def give(self, count: int) -> None:
        """Counts bytes that are held no longer."""
        self.held -= count


async def read_body(request: Request, most: int, values: int, room: BodyRoom) -> bytes:
    """Returns a body of up to `most` bytes, which is JSON in UTF-8 if it is anything, of up to `values` values.

    Raises `APIError`: 415 for another type, charset or encoding, 413 for too many bytes, 400 for too many values or
    half a body, 408 for a slow sender, 503 where others fill the room.
    """
    _check_headers(request)
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > most:
        raise _too_large(most)
    body, counts = bytearray(), JSONCounts()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in request.stream():
                if len(body) + len(chunk) > most:
                    raise _too_large(most)
                room.take(len(chunk))
                body += chunk
                await _count(chunk, counts, values)
    except TimeoutError:
        raise APIError(408, f"the body was not here within {BODY_TIMEOUT_S:g} s", code="body_timeout") from None
    except ClientDisconnect:
        raise APIError(400, "the body is incomplete", code="body_incomplete") from None
    finally:
        room.give(len(body))
    return bytes(body)


async def parsed(parse: Callable[[bytes], Body], body: bytes) -> Body:
    """Returns what `parse` makes of a body: here of a small one, of a large one on a thread."""
    return parse(body) if len(body) <= INLINE_BODY_BYTES else await asyncio.to_thread(parse, body)


def _check_headers(request: Request) -> None:
    content = request.headers.get("content-type", "")
    kind = content.partition(";")[0].strip().lower()
    if kind != "application/json":
        # Also keeps web pages of other sites out: browsers ask before they send this type.
        message = f"content-type is {kind or 'missing'!r}, expected application/json"
        raise APIError(415, message, code="wrong_content_type")
    header = Message()
    header["content-type"] = content
    charset = header.get_content_charset() or "utf-8"
    if charset not in JSON_CHARSETS:
        raise APIError(415, f"the body's charset is {charset!r}, and JSON is UTF-8", code="wrong_charset")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", ""):
        message = f"content-encoding is {encoding!r}; bodies are taken as they are, not compressed"
        raise APIError(415, message, code="wrong_content_encoding")


async def _count(chunk: bytes, counts: JSONCounts, values: int) -> None:
    """Counts in pieces, between which others run. Raises `APIError` for more than there may be."""
    for begin in range(0, len(chunk), PIECE_BYTES):
        counts.push(chunk[begin : begin + PIECE_BYTES])
        if counts.objects > MAX_OBJECTS:
            raise invalid(f"the body has more than {MAX_OBJECTS} objects and lists", code="too_many_values")
        if counts.values > values:
            raise invalid(f"the body has more than {values} values", code="too_many_values")
        if begin + PIECE_BYTES < len(chunk):
            await asyncio.sleep(0)


def _too_large(most: int) -> APIError:
    return APIError(413, f"the body has more than {most} bytes", code="body_too_large")
