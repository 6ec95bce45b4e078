"""A small client of one endpoint: the served model's name, and an answer as a stream of text."""

import http.client
import json
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

SILENCE = 300.0  # s without a byte; the gateway has deadlines of its own
SCHEMES = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}


class EndpointError(Exception):
    """The endpoint cannot be reached, or answered with an error."""


@dataclass(frozen=True)
class Timings:
    """Of one answer, in milliseconds; `tpot` is None for answers of fewer than two tokens."""

    ttft: float
    tpot: float | None
    tokens: int


class Endpoint:
    """An OpenAI-compatible server. `url` may end in `/v1`."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in SCHEMES or not parts.hostname or port == -1:
            raise EndpointError(f"--url: {url!r}: expected a URL such as http://127.0.0.1:8000")
        self._kind = SCHEMES[parts.scheme]
        self._address = (parts.hostname, port)
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        self.url = f"{parts.scheme}://{parts.netloc}{self._prefix}"
        self.timings: Timings | None = None

    def model(self) -> str:
        """The name of the first served model. Raises `EndpointError`."""
        with_body = self._request("GET", "/v1/models", None)
        try:
            return str(json.loads(with_body.read())["data"][0]["id"])
        except (ValueError, LookupError, TypeError):
            raise EndpointError(f"{self.url}/v1/models answered something else than a list of models") from None
        finally:
            with_body.close()

    def answer(self, request: Mapping[str, Any]) -> Generator[str, None, None]:
        """Streams the text of a chat completion; closing the iterator ends the request. Sets `timings` at the end.

        Raises `EndpointError`, also in the middle of a stream.
        """
        self.timings = None
        body = {**request, "stream": True, "stream_options": {"include_usage": True}}
        sent = time.monotonic()
        response = self._request("POST", "/v1/chat/completions", json.dumps(body).encode())
        first = last = 0.0
        pieces = tokens = 0
        try:
            for event in _events(response):
                if "error" in event:
                    raise EndpointError(_message(event) or "the endpoint reported an error")
                if usage := event.get("usage"):
                    tokens = usage.get("completion_tokens", 0)
                for choice in event.get("choices", ()):
                    if piece := choice.get("delta", {}).get("content"):
                        last = time.monotonic()
                        first = first or last
                        pieces += 1
                        yield piece
        except (OSError, http.client.HTTPException) as error:
            raise EndpointError(f"the connection to {self.url} broke: {error}") from None
        finally:
            response.close()
            if pieces:
                tokens = tokens or pieces
                tpot = 1000 * (last - first) / (tokens - 1) if tokens > 1 else None
                self.timings = Timings(1000 * (first - sent), tpot, tokens)

    def _request(self, method: str, path: str, body: bytes | None) -> http.client.HTTPResponse:
        # The response holds the socket: closing it closes the connection (`Connection: close`).
        connection = self._kind(*self._address, timeout=SILENCE)
        headers = {"Content-Type": "application/json", "Connection": "close"}
        try:
            connection.request(method, self._prefix + path, body, headers)
            response: http.client.HTTPResponse = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise EndpointError(f"{self.url} cannot be reached: {error}") from None
        if response.status != http.client.OK:
            try:
                said = _message(json.loads(response.read()))
            except ValueError:
                said = ""
            response.close()
            raise EndpointError(said or f"{self.url}{path} answered with status {response.status}")
        return response


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The JSON objects of a stream of server-sent events, up to `[DONE]`."""
    for line in response:
        data = line.strip().removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
        if data == b"[DONE]":
            return
        if data:
            try:
                yield json.loads(data)
            except ValueError:
                raise EndpointError("the endpoint sent an event that is not JSON") from None
    raise EndpointError("the answer broke off")


def _message(body: Any) -> str:
    """The text of an error in OpenAI's shape, or nothing."""
    error = body.get("error") if isinstance(body, dict) else None
    return str(error.get("message", "")) if isinstance(error, dict) else ""
