"""Conversations and agents: requests that go on after a pause, each with the whole text before it as its prompt.

A conversation has few turns, short additions and long pauses, in which a person reads and thinks; an agent has many
turns, long additions, which are the results of its tools, and short pauses. The answers in later prompts are random
token ids in place of what the server said, so that equal seeds make equal prompts: a server finds the earlier prompts
in its cache, not its own answers.
"""

import random
from collections.abc import Iterator

from msgspec import Struct, structs

from workloads.lengths import Lengths
from workloads.request import NextTurn, PlannedRequest, Span, Workload


class ConversationWorkload(Struct, frozen=True):
    """Requests of the workload `first`, each with later turns.

    `turns`: number of requests of a conversation; `added`: tokens that each later turn adds; `pause_s`: mean of
    exponential pauses.
    """

    first: Workload
    turns: Lengths
    added: Lengths
    pause_s: float

    def requests(self, chance: random.Random) -> Iterator[PlannedRequest]:
        return (in_turn(self._turns(request, chance), self.pause_s, chance) for request in self.first.requests(chance))

    def _turns(self, first: PlannedRequest, chance: random.Random) -> list[PlannedRequest]:
        assert self.first.output is not None
        requests = [first]
        for _ in range(self.turns.draw(chance) - 1):
            before = requests[-1]
            answer = Span(chance.getrandbits(64), before.output_tokens)
            added = Span(chance.getrandbits(64), self.added.draw(chance))
            requests.append(PlannedRequest(self.first.output.draw(chance), spans=(*before.spans, answer, added)))
        return requests


def in_turn(requests: list[PlannedRequest], pause_s: float, chance: random.Random) -> PlannedRequest:
    """Returns the first of the requests, each with the next behind a pause of `pause_s` on average."""
    pauses = [chance.expovariate(1 / pause_s) if pause_s else 0.0 for _ in requests[1:]]
    following = requests[-1]
    for request, pause in zip(reversed(requests[:-1]), reversed(pauses), strict=True):
        following = structs.replace(request, then=NextTurn(pause, following))
    return following
