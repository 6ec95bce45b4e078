"""Turns one sample's tokens into text for the client, up to its end, and keeps its timings.

Text may come later than its tokens: part of a character, or of a stop string, waits for the next tokens.
"""

from collections.abc import Callable

from msgspec import Struct

from contracts.messages.gateway import Emitted
from contracts.messages.sampling import Finish
from contracts.scores import Scores
from contracts.slo import Timings
from gateway.errors import APIError
from gateway.metrics.choice_metrics import ChoiceShape
from gateway.metrics.gateway_metrics import Metrics
from gateway.requests.sample import Sample
from gateway.text.detokenizer import Detokenizer
from gateway.text.stop import StopSearch

MAX_UNREAD_TOKENS = 4096  # limit of unread tokens of a streaming client; beyond it, the client reads too slowly


class Delta(Struct, frozen=True, gc=False):
    """Text and tokens since the client's last read, and the finish reason if it is the last read."""

    text: str
    finish: Finish | None
    token_ids: list[int]  # including a stop token
    scores: Scores | None = None  # of these tokens, if the request wants them
    stop_reason: int | str | None = None  # the client's stop token or stop string that ended the answer


class Stream:
    """One sample's text. The workers' side calls `take` and `fail`, the client's side `unread`.

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
        self._stops = StopSearch(sample.admitted.stops)
        self._bounded = bounded
        self._metrics = metrics
        self._plain = False  # begun, without stop strings to search: tokens are decoded when they are read
        self.goes_on = True  # neither ended nor failed
        self._first: float | None = None  # local time of its first token, s
        self._last = received  # local time of its last token, s
        self._text: list[str] = []  # not read by the client yet, …
        self._undecoded: list[int] = []  # … followed by the text of these tokens
        self._tokens: list[int] = []  # not read by the client yet
        self._scores: list[Scores] = []  # … of these tokens
        self._finish: Finish | None = None
        self._stop_reason: int | str | None = None
        self._error: APIError | None = None
        self._news = False  # something is unread
        self._listener: Callable[[], None] | None = None  # called once for news, until the client's side reads

    # the workers' side ----------------------------------------------------------------------------------------------

    def take(self, new: Emitted, now: float) -> tuple[Finish | None, bool]:
        """Takes new tokens. Returns the finish reason at the answer's end, and whether its worker must be notified.

        Tokens after a stop string are dropped. In the middle of most answers tokens are only kept, and decoded together
        when they are read.
        """
        tokens = new.token_ids
        if self._plain and tokens and new.finish is None and new.scores is None:
            count = len(tokens)
            self._metrics.inter_token_latency.observe((now - self._last) / count, count)
            self._last = now
            self._undecoded += tokens
            self._tokens += tokens
            if not self._news:
                self._tell()
            return None, False
        self._decode()
        if tokens or self.sample.vector:
            self._clock(max(1, len(tokens)), now)
        end = self.sample.admitted.limits.stop_token_ids if new.finish == "stop" else ()
        first = len(self.sample.tokens) - len(tokens)
        for place, token in enumerate(tokens):
            last = place == len(tokens) - 1
            if last and token in end:
                self._stop_reason = token if token in self.sample.admitted.stop_ids else None
                if not self.sample.admitted.with_stop:
                    break  # a stop token is no part of the text
            if self._say(self._detokenizer.push(token), first + place):
                self._keep(new, place + 1)
                del self.sample.tokens[first + place + 1 :]
                return self._finished("stop"), not (last and new.finish)
        self._keep(new, len(tokens))
        if new.finish is None:
            self._tell()
            return None, False
        met = self._say(self._detokenizer.flush(), len(self.sample.tokens))  # it may complete a stop string
        self._text.append(self._stops.flush())
        return self._finished("stop" if met else new.finish), False

    def _say(self, text: str, index: int) -> bool:
        """Adds text of the token at `index`; returns whether it has met a stop string, which ends the answer.

        Before the minimum number of tokens nothing ends the answer.
        """
        if index < self.sample.admitted.limits.min_tokens:
            self._text.append(text)
            return False
        text, stop = self._stops.push(text)
        self._text.append(text)
        if stop:
            self._stop_reason = stop
            if self.sample.admitted.with_stop:
                self._text.append(stop)
        return bool(stop)

    def _keep(self, new: Emitted, count: int) -> None:
        """Keeps the first `count` of these tokens, and their scores, for the client's next read."""
        self._tokens += new.token_ids[:count]
        if new.scores is not None:
            self._scores.append(new.scores.part(0, count))

    def fail(self, error: APIError) -> None:
        self._error, self.goes_on = error, False
        self._tell()

    def overrun(self) -> bool:
        return self._bounded and len(self._tokens) > MAX_UNREAD_TOKENS

    def _finished(self, finish: Finish) -> Finish:
        self._finish, self.goes_on = finish, False
        self._tell()
        return finish

    def _decode(self) -> None:
        if self._undecoded:
            self._text.append(self._detokenizer.text_of(self._undecoded))
            self._undecoded = []

    def _tell(self) -> None:
        if not self._news:
            self._news = True
            if self._listener is not None:
                self._listener()

    # the client's side ----------------------------------------------------------------------------------------------

    def listen(self, listener: Callable[[], None] | None) -> None:
        """Sets the callback for news, and calls it at once if there is any; None removes it."""
        self._listener = listener
        if listener is not None and self._news:
            listener()

    def unread(self) -> Delta:
        """Takes the unread text and tokens. Raises the stream's `APIError` after them, if it has failed."""
        self._news = False
        if self._error is not None and not self._tokens:
            raise self._error
        tokens, self._tokens = self._tokens, []
        if self._plain and not self._text:  # as in the middle of nearly all answers
            undecoded, self._undecoded = self._undecoded, []
            text = self._detokenizer.text_of(undecoded) if undecoded else ""
        else:
            self._decode()
            text, self._text = "".join(self._text), []
        scores = None
        if self._scores:
            scores, self._scores = Scores.joined(self._scores), []
        if self._error is not None:
            self._tell()  # the failure is for the next read
        return Delta(text, self._finish, tokens, scores, self._stop_reason)

    # timings --------------------------------------------------------------------------------------------------------

    def timings(self, now: float) -> Timings:
        """Returns the timings as of the last token, or of `now` without tokens."""
        first = self._first if self._first is not None else now
        last = self._last if self._first is not None else now
        tokens = len(self.sample.tokens)
        return Timings((first - self.received) * 1000, (last - self.received) * 1000, tokens)

    @property
    def refused(self) -> bool:
        """Whether it ended with 429 or 503 before its first token."""
        return self._error is not None and self._error.refuses and not self.sample.tokens

    def shape(self) -> ChoiceShape:
        sample, first = self.sample, self._first if self._first is not None else self._last
        limit = sample.admitted.limits.max_tokens
        return ChoiceShape(len(sample.prompt.token_ids), len(sample.tokens), limit, self._last - first)

    def _clock(self, tokens: int, now: float) -> None:
        if self._first is None:
            self._first = self._last = now
            self._plain = not self._stops.any
            self._metrics.first_token(now - self.received)
            tokens -= 1
        if tokens:
            self._metrics.inter_token_latency.observe((now - self._last) / tokens, tokens)
        self._last = now
