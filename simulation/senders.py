"""Who sends simulated requests: a caller with a key's weight, limits and objective, and an adapter."""

import random
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct, structs

from contracts.slo import Objective
from gateway.keys.caller import ANY_CALLER, Caller
from gateway.keys.callers import caller_of
from infra.keys.api_key import KeyRecord
from simulation.name_digest import name_digest


class KeyTraffic(Struct, frozen=True):
    """An API key, and its share of the requests relative to other keys."""

    key: KeyRecord
    share: float = 1.0


class SimulatedSender(NamedTuple):
    """The caller of a request, or of all turns of a conversation, and the digest of the adapter that it names."""

    caller: Caller
    key_name: str  # empty: without a key
    adapter: str


class Senders:
    """Draws the sender of each request, by a seed of its own."""

    def __init__(self, keys: Sequence[KeyTraffic], adapters: Sequence[str], objective: Objective) -> None:
        """`adapters`: equally frequent names; (): the model alone. `objective`: of requests whose key has none."""
        callers = [(caller_of(each.key), each.key.name) for each in keys] or [(ANY_CALLER, "")]
        self._callers = [(_with_usual(caller, objective), name) for caller, name in callers]
        self._shares = [each.share for each in keys] or [1.0]
        self._adapters = tuple(map(name_digest, adapters)) or ("",)
        self._is_sole = len(self._callers) == len(self._adapters) == 1
        self._sole = SimulatedSender(*self._callers[0], self._adapters[0])
        self._chance = random.Random("senders")

    def draw(self) -> SimulatedSender:
        if self._is_sole:
            return self._sole
        ((caller, name),) = self._chance.choices(self._callers, self._shares)
        return SimulatedSender(caller, name, self._chance.choice(self._adapters))


def _with_usual(caller: Caller, usual: Objective) -> Caller:
    objective = caller.objective.over(usual)
    return structs.replace(caller, objective=objective, granted=objective)
