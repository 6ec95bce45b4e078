"""Requests of a workload: example chats, or prompts of token ids in which equal parts are equal prefixes."""

import random
from collections.abc import Iterator
from itertools import repeat

from msgspec import Struct

from workloads.example_chats import EXAMPLE_CHATS
from workloads.lengths import Lengths


class Span(Struct, frozen=True):
    """A run of random token ids. Two spans of one seed begin with the same ids."""

    seed: int
    tokens: int

    def ids(self, vocabulary: int) -> list[int]:
        # 32 random bits for each id: `randrange` would take forty times as long.
        drawn = memoryview(random.Random(self.seed).randbytes(4 * self.tokens)).cast("I")
        return [number % vocabulary for number in drawn]


class PlannedRequest(Struct, frozen=True):
    """A request before it is sent: a chat's messages or spans of token ids, and the tokens of its answer.

    `chat`: texts of a person and of the model in turn; its spans, if it has any, are estimates of their lengths.
    """

    output_tokens: int
    chat: tuple[str, ...] = ()
    spans: tuple[Span, ...] = ()
    then: "NextTurn | None" = None

    @property
    def prompt_tokens(self) -> int:
        """The prompt's length in tokens; 0 for an example chat, whose tokens only the server knows."""
        return sum(span.tokens for span in self.spans)

    def turns(self) -> Iterator["PlannedRequest"]:
        """Yields the request and its later turns."""
        request: PlannedRequest | None = self
        while request is not None:
            yield request
            request = request.then.request if request.then is not None else None


class NextTurn(Struct, frozen=True):
    """A request that is sent `pause_s` after the end of the answer before it, if that was whole."""

    pause_s: float
    request: PlannedRequest


class Workload(Struct, frozen=True):
    """Describes requests: example chats without `prompt`; else random token ids behind a prefix that all share.

    `output`: lengths of answers; None: each chat's own length. `shared_tokens`: tokens of the shared prefix, which are
    not counted in `prompt`.
    """

    prompt: Lengths | None = None
    output: Lengths | None = None
    shared_tokens: int = 0

    def requests(self, chance: random.Random) -> Iterator[PlannedRequest]:
        """Yields requests without an end. No two prompts of token ids are equal behind the shared prefix."""
        shared = (Span(chance.getrandbits(32), self.shared_tokens),) if self.shared_tokens else ()
        for _ in repeat(None):
            if self.prompt is None:
                example = chance.choice(EXAMPLE_CHATS)
                tokens = self.output.draw(chance) if self.output is not None else example.max_tokens
                yield PlannedRequest(tokens, (example.text,))
                continue
            assert self.output is not None
            own = Span(chance.getrandbits(64), self.prompt.draw(chance))
            yield PlannedRequest(self.output.draw(chance), spans=(*shared, own))


class TimedRequest(Struct, frozen=True):
    """A request and the time at which it is due, s since the load's start."""

    due_s: float
    request: PlannedRequest


def timed(times: Iterator[float], requests: Iterator[PlannedRequest], count: int) -> Iterator[TimedRequest]:
    """Yields `count` requests at most."""
    return (TimedRequest(at, request) for _, at, request in zip(range(count), times, requests, strict=False))
