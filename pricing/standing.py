"""Tells how the workers of each role stand, and predicts how they would if there were more of them, or fewer.

A gateway publishes it; whoever adds and removes workers reads it (`launcher/autoscale/`, or Kubernetes by `/metrics`).
What waits is spread evenly over as many workers as there are. Sequences that decode come at a rate: with more of them
on a worker its steps take longer, so each stays longer, and there are more still (Little, 1961); the fixed point of
that is what is predicted.
"""

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

from msgspec import Struct, structs


class WorkerStanding(Struct, frozen=True):
    """Tells how one worker stands, as a gateway sees it; seconds are None while its steps' costs are not known."""

    worker: str  # its epoch
    address: str = ""  # of its control socket
    usable: bool = True  # requests may go there
    draining: bool = False  # it takes nothing new, and ends
    age: float = 0.0  # seconds since it has said so
    queued_tokens: int = 0  # of prompts that are still to be computed there
    sequences: int = 0  # that decode there
    waiting: int = 0  # sequences that wait for room there
    ttft: float | None = None  # until a usual prompt that comes now has its first token, behind everybody
    ttft_alone: float | None = None  # the same where nothing waits
    tpot: float | None = None  # for each token, with one sequence more
    tpot_alone: float | None = None  # for each token of that one alone
    blocks: int = 0
    free_blocks: int = 0
    found_tokens: int = 0  # of prompts whose KV it had, since its start

    @property
    def known(self) -> bool:
        """Tells whether its costs are known."""
        return self.ttft is not None


class RoleStanding(Struct, frozen=True):
    """Tells how the workers of one role stand together."""

    workers: tuple[WorkerStanding, ...] = ()
    work: float = 0.0  # seconds of prompts' computation that come in a second: workers that would be busy with those
    waiting_tokens: int = 0  # of prompts in line at the gate, which are to be computed by this role
    usual_tokens: float = 0.0  # that are computed of a usual prompt

    @property
    def serving(self) -> list[WorkerStanding]:
        """Lists the workers that take requests, and whose costs are known."""
        return [one for one in self.workers if one.usable and not one.draining and one.known]

    @property
    def queued_tokens(self) -> int:
        """Counts the tokens of prompts that are still to be computed."""
        return sum([one.queued_tokens for one in self.workers])

    @property
    def free_blocks(self) -> float:
        """Returns the share of KV blocks that are free, 0 to 1; 1 where there are none."""
        serving = self.serving
        blocks = sum([one.blocks for one in serving])
        return sum([one.free_blocks for one in serving]) / blocks if blocks else 1.0

    def ttft(self, workers: int) -> float | None:
        """Predicts the seconds to the first token of a usual prompt, with what waits now spread over so many workers.

        None where no worker's costs are known.
        """
        serving = self.serving
        if not serving or workers < 1:
            return None
        alone = _mean(one.ttft_alone or 0.0 for one in serving)
        queued = sum([(one.ttft or 0.0) - (one.ttft_alone or 0.0) for one in serving])
        line = self.waiting_tokens / self.usual_tokens * alone if self.usual_tokens else 0.0
        return alone + (queued + line) / workers

    def tpot(self, workers: int) -> float | None:
        """Predicts the seconds for each token, with what decodes now on so many workers; infinite if it would pile up.

        None where no worker's costs are known.
        """
        serving = self.serving
        if not serving or workers < 1:
            return None
        alone, each = self.step_seconds()
        rate = sum([one.sequences / one.tpot for one in serving if one.tpot]) / workers
        return alone / (1 - each * rate) if each * rate < 1 else inf

    def step_seconds(self) -> tuple[float, float]:
        """Returns the seconds of a step for one sequence, and for each further one: means over the workers."""
        serving = self.serving
        alone = _mean(one.tpot_alone or 0.0 for one in serving)
        more = [one for one in serving if one.sequences]
        each = _mean(((one.tpot or 0.0) - (one.tpot_alone or 0.0)) / one.sequences for one in more)
        return alone, each

    def used_blocks(self, workers: int) -> float:
        """Predicts the share of KV blocks in use on so many workers, had all room that wait for it; may exceed 1."""
        serving = self.serving
        running = sum([one.sequences for one in serving])
        waiting = sum([one.waiting for one in serving])
        wanted = 1 + waiting / max(1, running)
        return (1 - self.free_blocks) * wanted * len(serving) / workers if workers else inf


class Standing(Struct, frozen=True):
    """Tells how the workers stand, by role."""

    prefill: RoleStanding = RoleStanding()
    decode: RoleStanding = RoleStanding()


class Limits(NamedTuple):
    """Holds the objectives that a role should keep, in seconds."""

    ttft: float
    tpot: float


def merged(standings: Iterable[Standing]) -> Standing:
    """Returns what several gateways see as one: the workers of the one that sees most, and what came to any of them."""
    found = list(standings)
    if not found:
        return Standing()
    return Standing(_merged([one.prefill for one in found]), _merged([one.decode for one in found]))


def _merged(roles: list[RoleStanding]) -> RoleStanding:
    most = max(roles, key=lambda role: len(role.serving))
    return structs.replace(
        most,
        work=sum([role.work for role in roles]),
        waiting_tokens=sum([role.waiting_tokens for role in roles]),
    )


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else 0.0
