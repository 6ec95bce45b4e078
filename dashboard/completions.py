"""A chat with the gateway over HTTP, streamed: just what the page needs, on the standard library."""

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from core.errors import GatewayError

SILENCE = 30.0  # s without a byte
LONGEST = 120.0  # s of one answer
LARGEST = 1 << 20  # bytes of one line or error body


class Piece(NamedTuple):
    """A part of an answer, with the id of the response that it belongs to."""

    response: str
    text: str


def request_of(response: str) -> str:
    """The request's id in the records, from the id that the client sees."""
    return response.removeprefix("chatcmpl-").removeprefix("cmpl-")


def first_model(gateway: str) -> str:
    """The name of the model that is served. Raises `GatewayError`."""
    with _exchange(gateway, "GET", "/v1/models", None) as response:
        try:
            return str(json.loads(response.read(LARGEST))["data"][0]["id"])
        except (ValueError, LookupError, TypeError):
            raise GatewayError(f"the gateway at {gateway} names no model") from None


def stream_chat(gateway: str, model: str, text: str, max_tokens: int) -> Iterator[Piece]:
    """Pieces of the answer as they come. Raises `GatewayError` with the gateway's own sentence where it has one."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "stream": True,
    }
    deadline = time.monotonic() + LONGEST
    with _exchange(gateway, "POST", "/v1/chat/completions", body) as response:
        while line := response.readline(LARGEST):
            if time.monotonic() > deadline:
                raise GatewayError(f"the answer took longer than {LONGEST:.0f} s")
            data = line.strip().removeprefix(b"data: ")
            if data == line.strip():
                continue  # an empty line, or a comment that keeps the connection alive
            if data == b"[DONE]":
                return
            yield _piece(data)
    raise GatewayError("the answer broke off")


def _piece(data: bytes) -> Piece:
    try:
        chunk: dict[str, Any] = json.loads(data)
        if "error" in chunk:
            raise GatewayError(str(chunk["error"]["message"]))
        delta = chunk["choices"][0]["delta"] if chunk["choices"] else {}
        return Piece(str(chunk["id"]), str(delta.get("content") or ""))
    except (ValueError, LookupError, TypeError, AttributeError):
        raise GatewayError("the gateway sent something that is no chat stream") from None


@contextmanager
def _exchange(gateway: str, method: str, path: str, body: dict[str, Any] | None) -> Iterator[http.client.HTTPResponse]:
    parts = urlsplit(gateway)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    try:
        connection = kind(parts.hostname or "127.0.0.1", parts.port, timeout=SILENCE)
    except (ValueError, http.client.InvalidURL):
        raise GatewayError(f"{gateway} is no URL of a gateway") from None
    try:
        encoded = None if body is None else json.dumps(body).encode()
        connection.request(method, parts.path.rstrip("/") + path, encoded, {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise GatewayError(_refusal(response))
        yield response
    except (OSError, http.client.HTTPException) as error:
        raise GatewayError(f"the gateway at {gateway} does not answer ({str(error) or type(error).__name__})") from None
    finally:
        connection.close()


def _refusal(response: http.client.HTTPResponse) -> str:
    """The sentence in an error body of OpenAI's shape, or the status."""
    try:
        return str(json.loads(response.read(LARGEST))["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return f"the gateway answered with status {response.status} ({response.reason})"
