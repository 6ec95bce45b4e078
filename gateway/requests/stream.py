"""Turns one sample's tokens into text on its way to the client, up to its end, and keeps its timings."""

import asyncio
from typing import NamedTuple

from core.messages import Finish
from core.slo import Timings
from gateway.errors import APIError
from gateway.reports.metrics import Metrics
from gateway.requests.sample import Fresh, Sample
from gateway.text.detokenizer import Detokenizer
from gateway.text.stop import StopStrings

UNREAD = 4096  # tokens that may wait for a client that streams; with more, it reads too slowly


class Delta(NamedTuple):
    """Holds the text that came since the client's last read, and the reason of the end if it is the last."""

    text: str
    finish: Finish | None


class Stream:
    """Carries one sample's text. The workers' side calls `take` and `fail`, the client's side `read`.

    With `bounded`, a client that leaves too much unread is `overrun`.
    """

    def __init__(
        self,
        sample: Sample,
        detokenizer: Detokenizer,
        received: float,
        bounded: bool,
        metrics: Metrics,
    ) -> None:
        self.sample = sample
        self.received = received  # local clock, s
        self._detokenizer = detokenizer
        self._stops = StopStrings(sample.admitted.stops)
        self._bounded = bounded
        self._metrics = metrics
        self._first: float | None = None  # local time of its first token, s
        self._last = received  # local time of its last token, s
        self._text: list[str] = []  # not read by the client yet
        self._unread = 0  # tokens not read by the client yet
        self._finish: Finish | None = None
        self._error: APIError | None = None
        self._news = asyncio.Event()

    # the workers' side ----------------------------------------------------------------------------------------------

    def take(self, fresh: Fresh, now: float) -> tuple[Finish | None, bool]:
        """Takes new tokens. Returns the reason if they end the answer, and whether its worker does not know that yet.

        Tokens behind a stop string count as never made.
        """
        if fresh.tokens:
            self._clock(len(fresh.tokens), now)
        stop_ids = self.sample.admitted.limits.stop_token_ids
        first = len(self.sample.tokens) - len(fresh.tokens)
        for place, token in enumerate(fresh.tokens):
            last = place == len(fresh.tokens) - 1
            self._unread += 1
            if last and fresh.finish == "stop" and token in stop_ids:
                break  # it ends the answer, and is no part of its text
            text, met = self._stops.push(self._detokenizer.push(token))
            self._text.append(text)
            if met:
                del self.sample.tokens[first + place + 1 :]
                return self._finished("stop"), not (last and fresh.finish)
        if fresh.finish is None:
            self._news.set()
            return None, False
        text, met = self._stops.push(self._detokenizer.flush())  # what it held back may complete a stop string
        self._text += [text, self._stops.flush()]
        return self._finished("stop" if met else fresh.finish), False

    def fail(self, error: APIError) -> None:
        """Ends the text with an error: what has come is not the whole answer."""
        self._error = error
        self._news.set()

    def overrun(self) -> bool:
        """Returns whether its client has left too much unread."""
        return self._bounded and self._unread > UNREAD

    def _finished(self, finish: Finish) -> Finish:
        self._finish = finish
        self._news.set()
        return finish

    # the client's side ----------------------------------------------------------------------------------------------

    async def read(self, patience: float) -> Delta | None:
        """Returns what has come, or None if nothing does in `patience` seconds. Raises `APIError` if it has failed."""
        if not self._news.is_set():
            try:
                async with asyncio.timeout(patience):
                    await self._news.wait()
            except TimeoutError:
                return None
        self._news.clear()
        text = "".join(self._text)
        self._text, self._unread = [], 0
        if self._error is not None and not text:
            raise self._error
        if self._error is not None:
            self._news.set()  # the failure is for the next read
        return Delta(text, self._finish)

    # timings --------------------------------------------------------------------------------------------------------

    def timings(self, now: float) -> Timings:
        """Returns its timings as of its last token, or of `now` if there is none."""
        first = self._first if self._first is not None else now
        last = self._last if self._first is not None else now
        tokens = len(self.sample.tokens)
        return Timings((first - self.received) * 1000, (last - self.received) * 1000, tokens)

    def _clock(self, tokens: int, now: float) -> None:
        if self._first is None:
            self._first = self._last = now
            self._metrics.first_token(now - self.received)
            tokens -= 1
        for _ in range(tokens):
            self._metrics.gap((now - self._last) / tokens)
        self._last = now
