"""Reads and parses the body of a request, with bounds on its size, its duration, and its use of the event loop."""

import asyncio
from collections.abc import Callable
from email.message import Message
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request

from gateway.errors import APIError, invalid, unavailable
from gateway.web.json_bounds import MAX_OBJECTS, PIECE_BYTES, JSONCounts

BODY_TIMEOUT_S = 30.0  # until the whole body has arrived
INLINE_BODY_BYTES = 16 << 10  # largest body parsed on the event loop, in half a millisecond
JSON_CHARSETS = {"utf-8", "utf8", "us-ascii", "ascii"}  # JSON is UTF-8, which includes ASCII

Body = TypeVar("Body")


class BodyReader:
    """Reads bodies of up to `max_body` bytes each, and of up to `memory` bytes in total at any time."""

    def __init__(self, max_body: int, memory: int) -> None:
        self._max_body = max_body
        self._memory = max(memory, max_body)
        self._held = 0  # bytes of bodies being read

    async def read(self, request: Request, parse: Callable[[bytes], Body], max_values: int) -> Body:
        """Returns the result of `parse` for a body of JSON in UTF-8; a large body is parsed on a thread.

        Raises `APIError`: 415 for another type, charset or encoding, 413 for too many bytes, 400 for more than
        `max_values` JSON values or an incomplete body, 408 for a slow sender, 503 while other bodies fill the memory.
        """
        _check_headers(request)
        length = request.headers.get("content-length", "0")
        if length.isdigit() and int(length) > self._max_body:
            raise self._too_large()
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                await self._receive(request, body, max_values)
        except TimeoutError:
            raise APIError(408, f"the body was not here within {BODY_TIMEOUT_S:g} s", code="body_timeout") from None
        except ClientDisconnect:
            raise APIError(400, "the body is incomplete", code="body_incomplete") from None
        finally:
            self._held -= len(body)
        whole = bytes(body)
        return parse(whole) if len(whole) <= INLINE_BODY_BYTES else await asyncio.to_thread(parse, whole)

    async def _receive(self, request: Request, body: bytearray, max_values: int) -> None:
        counts = JSONCounts()
        async for chunk in request.stream():
            if len(body) + len(chunk) > self._max_body:
                raise self._too_large()
            if self._held + len(chunk) > self._memory:
                message = f"bodies of {self._held} bytes are being read, and {self._memory} are allowed"
                raise unavailable(message, "too_many_bodies")
            self._held += len(chunk)
            body += chunk
            await _count(chunk, counts, max_values)

    def _too_large(self) -> APIError:
        return APIError(413, f"the body has more than {self._max_body} bytes", code="body_too_large")


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


async def _count(chunk: bytes, counts: JSONCounts, max_values: int) -> None:
    """Counts a chunk in pieces, with pauses for other tasks. Raises `APIError` beyond a bound."""
    for begin in range(0, len(chunk), PIECE_BYTES):
        counts.push(chunk[begin : begin + PIECE_BYTES])
        if counts.objects > MAX_OBJECTS:
            raise invalid(f"the body has more than {MAX_OBJECTS} objects and lists", code="too_many_values")
        if counts.values > max_values:
            raise invalid(f"the body has more than {max_values} values", code="too_many_values")
        if begin + PIECE_BYTES < len(chunk):
            await asyncio.sleep(0)
