"""Standing of each role's workers, and predictions for more or fewer workers.

A gateway publishes it; autoscalers read it (`launcher/autoscale/`, or Kubernetes from `/metrics`). With m workers:

    ttft(m) = alone + (queues + line) / m
    tpot(m) = alone / (1 - e·λ / m)

alone: seconds without other requests; queues, line: seconds of the prompts that wait on workers and at the gate. λ
output tokens per second are wanted, and each sequence adds e seconds to a step: more sequences make steps longer, so
each stays longer (Little, 1961). tpot is the fixed point, infinite if sequences would pile up.
"""

from collections.abc import Iterable
from math import inf

from msgspec import Struct, structs


class WorkerStanding(Struct, frozen=True):
    """Standing of one worker, as a gateway sees it; seconds are None while its step costs are unknown."""

    worker: str  # its epoch
    address: str = ""  # of its control socket
    usable: bool = True  # requests may go there
    draining: bool = False  # takes nothing new, and ends
    age: float = 0.0  # seconds since its report
    queued_tokens: int = 0  # tokens of prompts that are still to be computed there
    sequences: int = 0  # decoding there
    waiting: int = 0  # sequences that wait for KV blocks there
    ttft: float | None = None  # s until a usual prompt that comes now has its first token, as the last in the queue
    ttft_alone: float | None = None  # the same without a queue
    tpot: float | None = None  # s per token, with one more sequence
    tpot_alone: float | None = None  # s per token of that sequence alone
    blocks: int = 0
    free_blocks: int = 0
    found_tokens: int = 0  # tokens of prompts whose KV it had, since its start

    @property
    def known(self) -> bool:
        return self.ttft is not None


class RoleStanding(Struct, frozen=True):
    """Standing of the workers of one role."""

    workers: tuple[WorkerStanding, ...] = ()
    work: float = 0.0  # seconds of computation that arrive in prompts per second: the workers that they keep busy
    waiting_tokens: int = 0  # tokens of prompts at the gate that this role is to compute
    usual_tokens: float = 0.0  # tokens to compute of a usual prompt

    @property
    def serving(self) -> list[WorkerStanding]:
        return [worker for worker in self.workers if worker.usable and not worker.draining and worker.known]

    @property
    def queued_tokens(self) -> int:
        return sum([worker.queued_tokens for worker in self.workers])

    @property
    def free_blocks(self) -> float:
        """Returns the share of KV blocks that are free, 0 to 1; 1 where there are none."""
        serving = self.serving
        blocks = sum([worker.blocks for worker in serving])
        return sum([worker.free_blocks for worker in serving]) / blocks if blocks else 1.0

    def ttft(self, workers: int) -> float | None:
        """Predicts the TTFT, s, of a usual prompt with `workers` workers; None if no worker's costs are known."""
        serving = self.serving
        if not serving or workers < 1:
            return None
        alone = _mean(worker.ttft_alone or 0.0 for worker in serving)
        queued = sum([(worker.ttft or 0.0) - (worker.ttft_alone or 0.0) for worker in serving])
        line = self.waiting_tokens / self.usual_tokens * alone if self.usual_tokens else 0.0
        return alone + (queued + line) / workers

    def tpot(self, workers: int) -> float | None:
        """Predicts the s per token of present sequences on `workers` workers; None if no worker's costs are known."""
        serving = self.serving
        if not serving or workers < 1:
            return None
        alone, each = self.step_seconds()
        rate = sum([worker.sequences / worker.tpot for worker in serving if worker.tpot]) / workers
        return alone / (1 - each * rate) if each * rate < 1 else inf

    def step_seconds(self) -> tuple[float, float]:
        """Returns the seconds of a step with one sequence, and of each further sequence: means over the workers."""
        serving = self.serving
        alone = _mean(worker.tpot_alone or 0.0 for worker in serving)
        more = [worker for worker in serving if worker.sequences]
        each = _mean(((worker.tpot or 0.0) - (worker.tpot_alone or 0.0)) / worker.sequences for worker in more)
        return alone, each

    def used_blocks(self, workers: int) -> float:
        """Predicts the share of KV blocks in use on `workers` workers, if no sequence waited; may exceed 1."""
        serving = self.serving
        running = sum([worker.sequences for worker in serving])
        waiting = sum([worker.waiting for worker in serving])
        wanted = 1 + waiting / max(1, running)
        return (1 - self.free_blocks) * wanted * len(serving) / workers if workers else inf


class Standing(Struct, frozen=True):
    """Standing of all workers, by role."""

    prefill: RoleStanding = RoleStanding()
    decode: RoleStanding = RoleStanding()


def merged(standings: Iterable[Standing]) -> Standing:
    """Combines the standings of several gateways: the workers of the gateway that sees most, and the demand on all."""
    found = list(standings)
    if not found:
        return Standing()
    return Standing(_merged([each.prefill for each in found]), _merged([each.decode for each in found]))


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
