"""Asks the gateway in threads of their own, so that the page goes on refreshing while answers come."""

import threading
import time
from collections.abc import Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import NamedTuple

from contracts.errors import ConfigError, GatewayError
from dashboard.prompts import Prompt
from infra.completions_client import CompletionChunk, CompletionsClient
from infra.keys.key_file import read_key

AT_ONCE = 4
SILENCE = 30.0  # s without a byte
LONGEST = 120.0  # s of one answer


def stream_chat(endpoint: CompletionsClient, model: str, prompt: Prompt) -> Iterator[CompletionChunk]:
    """Yields the answer to a prompt as it comes. Raises `GatewayError`."""
    messages = [{"role": "user", "content": prompt.text}]
    request = {"model": model, "messages": messages, "max_tokens": prompt.max_tokens}
    return endpoint.stream("/v1/chat/completions", request, LONGEST)


def request_of(response: str) -> str:
    """Returns the request's id in the records, from the id that the client sees."""
    return response.removeprefix("chatcmpl-").removeprefix("cmpl-")


class Gateway(NamedTuple):
    """Says where the gateway is, and what it takes to ask it."""

    url: str
    key_file: str = ""
    cert: str = ""

    def endpoint(self) -> CompletionsClient:
        """Makes a client of it. Raises `GatewayError` for what is no URL, key or certificate."""
        try:
            key = read_key(self.key_file, "--api-key-file")
        except ConfigError as error:
            raise GatewayError(str(error)) from None
        return CompletionsClient(self.url, "--gateway", SILENCE, key, self.cert)


class Question:
    """Asks one question, and holds its answer as far as it has come. One thread writes, pages read."""

    def __init__(self, gateway: Gateway, prompt: Prompt) -> None:
        self.prompt = prompt
        self.text = ""
        self.request = ""  # its id in the records, known with the first piece
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
    """Sends a number of requests, a few at once. Threads count, pages read."""

    def __init__(self, gateway: Gateway, prompts: Sequence[Prompt]) -> None:
        self.total = len(prompts)
        self.answered = 0
        self.failed = 0
        self.error = ""  # the last one
        self._gateway = gateway
        self._lock = threading.Lock()
        threading.Thread(target=self._send, args=(prompts,), name="volley", daemon=True).start()

    @property
    def running(self) -> bool:
        """Tells whether some have not ended yet."""
        return self.answered + self.failed < self.total

    def _send(self, prompts: Sequence[Prompt]) -> None:
        try:
            endpoint = self._gateway.endpoint()
            model = endpoint.model()
        except GatewayError as error:
            self.error = str(error)
            self.failed = self.total
            return
        waiting = SimpleQueue[Prompt]()
        for prompt in prompts:
            waiting.put(prompt)
        for _ in range(AT_ONCE):  # daemons, unlike a pool's threads: a shutdown does not wait for answers
            threading.Thread(target=self._work, args=(endpoint, model, waiting), name="volley", daemon=True).start()

    def _work(self, endpoint: CompletionsClient, model: str, waiting: SimpleQueue[Prompt]) -> None:
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
