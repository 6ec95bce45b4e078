"""Clients that read answers as they come, each in a thread, and compare them with the reference."""

import threading
from collections.abc import Iterator, Sequence

from contracts.errors import GatewayError
from infra.completions_client import CompletionsClient
from tests.e2e.harness.golden import tokens_of
from tests.reference import Golden
from tests.waiting import DEADLINE_S, patient, wait_until

MIN_TOKENS = 5


class Streams:
    def __init__(self, url: str, runs: Sequence[Golden], models: Sequence[str] = ()) -> None:
        """`models` are the runs' own, if the first model that is served is not meant."""
        self._endpoint = CompletionsClient(url, silence=patient(DEADLINE_S))
        self._waiting: Iterator[tuple[Golden, str]] = iter(zip(runs, models or [""] * len(runs), strict=True))
        self._begun: list[tuple[Golden, list[str], threading.Thread]] = []

    def begin(self, count: int) -> None:
        for _ in range(count):
            (run, model), texts = next(self._waiting), list[str]()
            thread = threading.Thread(target=self._read, args=(run, model, texts))
            self._begun.append((run, texts, thread))
            thread.start()

    def begin_to_flow(self, count: int) -> None:
        """Begins so many more, and returns when each has some tokens, `MIN_TOKENS` at least."""
        self.begin(count)
        wait_until(lambda: all(len(texts) >= MIN_TOKENS for _, texts, _ in self._begun), "first tokens")

    def flowing(self) -> int:
        return sum(thread.is_alive() for _, _, thread in self._begun)

    def finish(self) -> int:
        """Returns how many have begun, when all of them have ended with the tokens of the reference."""
        for run, texts, thread in self._begun:
            thread.join(patient(DEADLINE_S))
            assert tokens_of("".join(texts)) == run.tokens
        return len(self._begun)

    def _read(self, run: Golden, model: str, texts: list[str]) -> None:
        """Asks until it is answered: while Redis is empty, workers are not known well enough for new requests."""
        body = {"prompt": run.prompt, "max_tokens": len(run.tokens), "temperature": 0, "ignore_eos": True}
        if model:
            body["model"] = model

        def answered() -> bool:
            try:
                for chunk in self._endpoint.stream("/v1/completions", body):
                    if chunk.text:
                        texts.append(chunk.text)
            except GatewayError:
                if texts:
                    raise
                return False
            return True

        wait_until(answered, "an answer", DEADLINE_S)
