"""Sends requests to the gateway in threads, so that the page is refreshed while answers arrive."""

import threading
import time
from collections.abc import Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import NamedTuple

from contracts.errors import ConfigError, GatewayError
from infra.completions_client import CompletionsClient, StreamedChunk
from infra.keys.key_file import read_key
from workloads.example_chats import ExampleChat

MAX_CONCURRENT_REQUESTS = 4
MAX_SILENCE_S = 30.0  # between two bytes of an answer
MAX_ANSWER_S = 120.0


def stream_chat(endpoint: CompletionsClient, model: str, prompt: ExampleChat) -> Iterator[StreamedChunk]:
    """Streams the answer to a prompt. Raises `GatewayError`."""
    messages = [{"role": "user", "content": prompt.text}]
    request = {"model": model, "messages": messages, "max_tokens": prompt.max_tokens}
    return endpoint.stream("/v1/chat/completions", request, MAX_ANSWER_S)


def request_of(response: str) -> str:
    """Returns the request's id in the records, from the id in the response."""
    return response.removeprefix("chatcmpl-").removeprefix("cmpl-")


class GatewayAddress(NamedTuple):
    """The gateway's URL, with files of an API key and a certificate for it."""

    url: str
    key_file: str = ""
    cert: str = ""

    def endpoint(self) -> CompletionsClient:
        """Makes a client. Raises `GatewayError` for an invalid URL, key or certificate."""
        try:
            key = read_key(self.key_file)
        except ConfigError as error:
            raise GatewayError(str(error)) from None
        return CompletionsClient(self.url, "--gateway", MAX_SILENCE_S, key, self.cert)


class ChatQuestion:
    """One question and its growing answer. One thread writes, pages read."""

    def __init__(self, gateway: GatewayAddress, prompt: ExampleChat) -> None:
        self.prompt = prompt
        self.text = ""
        self.request = ""  # id in the records; empty before the first chunk
        self.error = ""
        self.ended_at: float | None = None  # monotonic, s
        self._gateway = gateway
        threading.Thread(target=self._ask, name="try-it", daemon=True).start()

    def _ask(self) -> None:
        try:
            endpoint = self._gateway.endpoint()
            for chunk in stream_chat(endpoint, endpoint.model(), self.prompt):
                self.request = request_of(chunk.response)
                self.text += chunk.text
        except GatewayError as error:
            self.error = str(error)
        finally:
            self.ended_at = time.monotonic()


class Volley:
    """Sends requests, a few concurrently. Threads count, pages read."""

    def __init__(self, gateway: GatewayAddress, prompts: Sequence[ExampleChat]) -> None:
        self.total = len(prompts)
        self.answered = 0
        self.failed = 0
        self.error = ""  # the last error
        self._gateway = gateway
        self._lock = threading.Lock()
        threading.Thread(target=self._send, args=(prompts,), name="volley", daemon=True).start()

    @property
    def running(self) -> bool:
        return self.answered + self.failed < self.total

    def _send(self, prompts: Sequence[ExampleChat]) -> None:
        try:
            endpoint = self._gateway.endpoint()
            model = endpoint.model()
        except GatewayError as error:
            self.error = str(error)
            self.failed = self.total
            return
        waiting = SimpleQueue[ExampleChat]()
        for prompt in prompts:
            waiting.put(prompt)
        for _ in range(MAX_CONCURRENT_REQUESTS):
            threading.Thread(target=self._work, args=(endpoint, model, waiting), name="volley", daemon=True).start()

    def _work(self, endpoint: CompletionsClient, model: str, waiting: SimpleQueue[ExampleChat]) -> None:
        while True:
            try:
                prompt = waiting.get_nowait()
            except Empty:
                return
            try:
                for _ in stream_chat(endpoint, model, prompt):
                    pass
            except GatewayError as error:
                with self._lock:
                    self.failed += 1
                    self.error = str(error)
            else:
                with self._lock:
                    self.answered += 1
