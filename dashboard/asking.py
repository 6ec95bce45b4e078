"""Questions to the gateway in threads of their own, so that the page goes on refreshing while answers come."""

import threading
import time
from collections.abc import Sequence
from queue import Empty, SimpleQueue

from core.errors import GatewayError
from dashboard.completions import first_model, request_of, stream_chat
from dashboard.prompts import Prompt

AT_ONCE = 4


class Question:
    """One question, and its answer as far as it has come. One thread writes, pages read."""

    def __init__(self, gateway: str, prompt: Prompt) -> None:
        self.prompt = prompt
        self.text = ""
        self.request = ""  # its id in the records, known with the first piece
        self.error = ""
        self.ended_at: float | None = None  # monotonic, s
        self._gateway = gateway
        threading.Thread(target=self._ask, name="try-it", daemon=True).start()

    def _ask(self) -> None:
        try:
            for piece in stream_chat(self._gateway, first_model(self._gateway), *self.prompt):
                self.request = request_of(piece.response)
                self.text += piece.text
        except GatewayError as error:
            self.error = str(error)
        finally:
            self.ended_at = time.monotonic()


class Volley:
    """A number of requests, a few at once. Threads count, pages read."""

    def __init__(self, gateway: str, prompts: Sequence[Prompt]) -> None:
        self.total = len(prompts)
        self.answered = 0
        self.failed = 0
        self.error = ""  # the last one
        self._gateway = gateway
        self._lock = threading.Lock()
        threading.Thread(target=self._send, args=(prompts,), name="volley", daemon=True).start()

    @property
    def running(self) -> bool:
        """Whether some have not ended yet."""
        return self.answered + self.failed < self.total

    def _send(self, prompts: Sequence[Prompt]) -> None:
        try:
            model = first_model(self._gateway)
        except GatewayError as error:
            self.error = str(error)
            self.failed = self.total
            return
        waiting = SimpleQueue[Prompt]()
        for prompt in prompts:
            waiting.put(prompt)
        for _ in range(AT_ONCE):  # daemons, unlike a pool's threads: a shutdown does not wait for answers
            threading.Thread(target=self._work, args=(model, waiting), name="volley", daemon=True).start()

    def _work(self, model: str, waiting: SimpleQueue[Prompt]) -> None:
        while True:
            try:
                prompt = waiting.get_nowait()
            except Empty:
                return
            try:
                for _ in stream_chat(self._gateway, model, *prompt):
                    pass
            except GatewayError as error:
                with self._lock:
                    self.failed += 1
                    self.error = str(error)
            else:
                with self._lock:
                    self.answered += 1
