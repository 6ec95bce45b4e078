"""Sees how the workers of each role stand, for whoever adds and removes some. Pure."""

from collections.abc import Iterable, Iterator

from msgspec import structs

from gateway.workers.demand import Demand
from gateway.workers.kinds import believed
from gateway.workers.worker import Worker
from pricing.backlog import LENGTHS, Ahead, Backlog, first_token_seconds
from pricing.standing import RoleStanding, Standing, WorkerStanding
from pricing.steps import StepCosts

AT_ONCE = 8  # workers that are looked at before others have their turn, in some 0.2 ms


class Look:
    """Looks at workers, some at a time, so that nobody waits for a hundred of them."""

    def __init__(self, workers: Iterable[Worker], demand: Demand, now: float) -> None:
        self._workers = list(workers)
        self._demand = demand
        self._now = now
        self._found: dict[str, list[WorkerStanding]] = {"prefill": [], "decode": []}

    def steps(self) -> Iterator[None]:
        """Looks at all workers; yields when others should have their turn."""
        costs = believed(self._workers)
        contexts = self._contexts()
        for number, worker in enumerate(self._workers, 1):
            record = worker.record
            self._found[record.role].append(
                _stands(worker, costs[record.epoch], self._demand, contexts[record.role], self._now)
            )
            if number % AT_ONCE == 0:
                yield

    def standing(self, in_line: int) -> Standing:
        """Returns what was seen. `in_line`: tokens of prompts at the gate, for whoever computes prompts."""
        prefill = self._role("prefill")
        decode = self._role("decode")
        if prefill.workers:
            return Standing(structs.replace(prefill, waiting_tokens=in_line), decode)
        return Standing(prefill, structs.replace(decode, waiting_tokens=in_line))

    def _role(self, role: str) -> RoleStanding:
        demand = self._demand
        return RoleStanding(tuple(self._found[role]), demand.work(role, self._now), 0, demand.usual_tokens)

    def _contexts(self) -> dict[str, float]:
        """Returns the tokens of a sequence that decodes, by role; a usual prompt's where none does."""
        usual = self._demand.usual_tokens + self._demand.usual_start
        sums = {"prefill": [0, 0], "decode": [0, 0]}
        for worker in self._workers:
            backlog, _ = worker.backlog(self._now)
            sums[worker.record.role][0] += backlog.sequences
            sums[worker.record.role][1] += backlog.context
        return {role: context / count if count else usual for role, (count, context) in sums.items()}


def _stands(worker: Worker, costs: StepCosts, demand: Demand, context: float, now: float) -> WorkerStanding:
    """Describes one worker. `context`: tokens of one sequence that decodes."""
    backlog, elapsed = worker.backlog(now)
    record, load, guessing = worker.record, worker.record.load, worker.guessing
    prompt = Ahead(max(1, round(demand.usual_tokens)), round(demand.usual_start))
    idle = Backlog(sequences=backlog.sequences, context=backlog.context)
    behind_all = structs.replace(backlog, shares=(), lengths=(0,) * LENGTHS)  # whosever they are, and however short
    known = costs.known
    return WorkerStanding(
        worker=record.epoch,
        address=record.address,
        usable=worker.usable and not worker.late,
        draining=record.draining,
        age=elapsed,
        queued_tokens=backlog.tokens,
        sequences=backlog.sequences,
        waiting=load.waiting,
        ttft=first_token_seconds(costs, behind_all, prompt, elapsed, worker.awaited()) if known else None,
        ttft_alone=first_token_seconds(costs, idle, prompt) if known else None,
        tpot=costs.token_seconds(backlog.sequences + 1, backlog.context + round(context), guessing) if known else None,
        tpot_alone=costs.token_seconds(1, round(context), guessing) if known else None,
        blocks=load.blocks_total,
        free_blocks=backlog.free_blocks,
        found_tokens=load.kv.found_tokens,
    )
