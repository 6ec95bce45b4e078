"""Reads the body of a request, bounded in size and time."""

import asyncio

from starlette.requests import ClientDisconnect, Request

from gateway.errors import APIError

SECONDS = 30.0  # s in which a body has to be here


async def read_body(request: Request, most: int) -> bytes:
    """Returns a body of up to `most` bytes.

    Raises `APIError`: 415 for another content type, 413 for too many bytes, 408 for a slow sender, 400 for half a body.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        # Also keeps web pages of other sites out: browsers ask before they send this type.
        message = f"content-type is {kind or 'missing'!r}, expected application/json"
        raise APIError(415, message, code="wrong_content_type")
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > most:
        raise _too_large(most)
    body = bytearray()
    try:
        async with asyncio.timeout(SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    raise _too_large(most)
    except TimeoutError:
        raise APIError(408, f"the body was not here within {SECONDS:g} s", code="body_timeout") from None
    except ClientDisconnect:
        raise APIError(400, "the body is incomplete", code="body_incomplete") from None
    return bytes(body)


def _too_large(most: int) -> APIError:
    return APIError(413, f"the body has more than {most} bytes", code="body_too_large")
