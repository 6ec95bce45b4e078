"""Client of an OpenAI-compatible endpoint: its first model, and streamed answers."""

import json
import math
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import msgspec

from contracts.errors import ConfigError, GatewayError
from infra.network.bind_address import lacks_brackets
from infra.network.tls import trusting

MAX_SILENCE_S = 300.0  # without a byte; the gateway has deadlines of its own
MAX_RESPONSE_BYTES = 1 << 20  # limit of a stream's line, or of another body
NO_KEEPING = httpx.Limits(max_connections=None, max_keepalive_connections=0)
"""Each request has its own connection, closed at its end, so a client need not be closed."""


class StreamedChunk(NamedTuple):
    """One event of a streamed answer."""

    response: str  # id of the response, as the client sees it
    text: str  # text added to the answer
    tokens: int | None  # output tokens of the whole answer, in the usage event
    prompt_tokens: int | None = None  # in the usage event
    cached_tokens: int | None = None  # prompt tokens that the server found computed, if the usage event tells
    choices: int = 0  # that the event is about, also by their end without text; a mere usage event is about none


class CompletionEvents:
    """Parses server-sent events from arbitrarily split bytes."""

    def __init__(self) -> None:
        self.ended = False  # whether `[DONE]` has come
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[StreamedChunk]:
        """Yields the chunks that `data` completes. Raises `GatewayError` for an error event or a malformed event."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_RESPONSE_BYTES:
            raise GatewayError(f"the endpoint sent a line of more than {MAX_RESPONSE_BYTES} bytes")
        for line in lines:
            field, _, value = line.partition(b":")
            if field != b"data":
                continue  # an empty line, or a comment that keeps the connection alive
            if value.strip() == b"[DONE]":
                self.ended = True
            else:
                yield _chunk(value)


class CompletionsClient:
    """A client for one endpoint, usable from any number of threads."""

    def __init__(
        self, url: str, option: str = "--url", silence: float = MAX_SILENCE_S, key: str = "", cert: str = ""
    ) -> None:
        """Takes a URL that may end in `/v1`. Raises `GatewayError` that names `option` for an invalid one.

        A request fails after `silence` seconds without a byte. `key`, if given, is sent as the API key. Over HTTPS the
        certificates in the file `cert` are trusted, or the system's if it is empty.
        """
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            self.url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
            address = httpx.URL(self.url)
        except (ValueError, httpx.InvalidURL):
            usable = False
        if not usable and lacks_brackets(url if "://" in url else f"http://{url}"):
            raise GatewayError(f"{option}: {url!r}: an IPv6 address stands in brackets, such as http://[::1]:8000")
        if not usable:
            raise GatewayError(f"{option}: {url!r}: expected a URL such as http://127.0.0.1:8000")
        try:
            verify = trusting(cert, "certificate") if parts.scheme == "https" else True
        except ConfigError as error:
            raise GatewayError(str(error)) from None
        headers = {"authorization": f"Bearer {key}"} if key else {}
        # No settings from the environment: a proxy does not know this host's ports.
        self._client = httpx.Client(
            base_url=address, timeout=silence, limits=NO_KEEPING, trust_env=False, headers=headers, verify=verify
        )

    def model(self) -> str:
        """Returns the name of the first model that is served. Raises `GatewayError`."""
        try:
            return str(json.loads(self.get("/v1/models"))["data"][0]["id"])
        except (ValueError, LookupError, TypeError):
            raise GatewayError(f"{self.url}/v1/models names no model") from None

    def get(self, path: str) -> bytes:
        """Returns the first `MAX_RESPONSE_BYTES` of an answer. Raises `GatewayError`."""
        with self._exchange("GET", path) as response:
            return _body(response)

    def post(self, path: str, body: Mapping[str, Any]) -> bytes:
        """Posts a body, and returns the first `MAX_RESPONSE_BYTES` of the answer. Raises `GatewayError`."""
        with self._exchange("POST", path, body) as response:
            return _body(response)

    def stream(
        self, path: str, body: Mapping[str, Any], longest: float = math.inf
    ) -> Generator[StreamedChunk, None, None]:
        """Posts `body` to `path` and yields the answer as it comes; closing the generator ends the request.

        Raises `GatewayError` at any time: with the endpoint's own message if there is one, if the answer breaks off, or
        if it takes longer than `longest` seconds.
        """
        deadline = time.monotonic() + longest
        events = CompletionEvents()
        streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
        with self._exchange("POST", path, streamed) as response:
            for data in response.iter_bytes():
                if time.monotonic() > deadline:
                    raise GatewayError(f"the answer took longer than {longest:.0f} s")
                yield from events.feed(data)
                if events.ended:
                    return
        raise GatewayError("the answer broke off")

    @contextmanager
    def _exchange(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Iterator[httpx.Response]:
        try:
            with self._client.stream(method, path, json=body) as response:
                if response.status_code != httpx.codes.OK:
                    said = error_message(_body(response))
                    raise GatewayError(said or f"{self.url}{path} answered with status {response.status_code}")
                yield response
        except (httpx.ConnectError, httpx.ConnectTimeout, UnicodeError) as error:
            raise GatewayError(f"{self.url} cannot be reached: {error}") from None
        except httpx.HTTPError as error:
            raise GatewayError(f"the connection to {self.url} broke: {error or type(error).__name__}") from None


def error_message(body: bytes) -> str:
    """Returns the message of an error body in OpenAI's format; empty for any other body."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return ""


def _chunk(data: bytes) -> StreamedChunk:
    """Parses an event. Raises `GatewayError` for an error event, and for a malformed event."""
    try:
        event = msgspec.json.decode(data)  # a fifth of the time of `json`, which a load generator spends on each token
        if error := event.get("error"):
            raise GatewayError(str(error["message"]))
        choices = event.get("choices") or ()
        text = "".join(_text(choice) for choice in choices)
        usage = event.get("usage") or {}
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        counts = usage.get("completion_tokens"), usage.get("prompt_tokens"), cached
        return StreamedChunk(str(event.get("id", "")), text, *counts, len(choices))
    except msgspec.DecodeError:
        raise GatewayError("the endpoint sent an event that is not JSON") from None
    except (LookupError, TypeError, AttributeError):
        raise GatewayError("the endpoint sent an event that is no part of an answer") from None


def _text(choice: dict[str, Any]) -> str:
    return (choice["delta"].get("content") if "delta" in choice else choice["text"]) or ""


def _body(response: httpx.Response) -> bytes:
    """Reads a body up to `MAX_RESPONSE_BYTES`. A truncated body is invalid JSON."""
    body = b""
    for data in response.iter_bytes():
        body += data
        if len(body) > MAX_RESPONSE_BYTES:
            break
    return body[:MAX_RESPONSE_BYTES]
