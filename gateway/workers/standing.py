"""Measures the load of each role's workers, for the autoscaler. Pure."""

from collections.abc import Iterable, Iterator

from msgspec import structs

from gateway.workers.worker import Worker
from pricing.routes.backlog import LENGTH_CLASSES, Backlog, PromptWork
from pricing.routes.pooled import cost_pools
from pricing.routes.wait import first_token_seconds
from pricing.scaling.demand import Demand
from pricing.scaling.standing import RoleStanding, Standing, WorkerStanding
from pricing.step_costs.steps import StepCosts

WORKERS_PER_TURN = 8  # workers measured before other tasks get a turn: some 0.2 ms


class StandingSurvey:
    """Measures workers, a few at a time, so that a hundred of them do not block other tasks. `now`: local time, s."""

    def __init__(self, workers: Iterable[Worker], demand: Demand, now: float) -> None:
        self._workers = list(workers)
        self._demand = demand
        self._now = now
        self._found: dict[str, list[WorkerStanding]] = {"prefill": [], "decode": []}

    def steps(self) -> Iterator[None]:
        """Measures all workers; yields where other tasks should have a turn."""
        pools = cost_pools(self._workers)
        contexts = self._contexts()
        for number, worker in enumerate(self._workers, 1):
            record = worker.record
            stands = _standing(
                worker, pools[worker.kind].costs_of(worker), self._demand, contexts[record.role], self._now
            )
            self._found[record.role].append(stands)
            if number % WORKERS_PER_TURN == 0:
                yield

    def standing(self, waiting_tokens: int) -> Standing:
        """Returns the result. `waiting_tokens`: tokens of prompts at the gate, for the role that computes them."""
        prefill = self._role("prefill")
        decode = self._role("decode")
        if prefill.workers:
            return Standing(structs.replace(prefill, waiting_tokens=waiting_tokens), decode)
        return Standing(prefill, structs.replace(decode, waiting_tokens=waiting_tokens))

    def _role(self, role: str) -> RoleStanding:
        demand = self._demand
        return RoleStanding(tuple(self._found[role]), demand.work(role, self._now), 0, demand.usual_tokens)

    def _contexts(self) -> dict[str, float]:
        """Returns the mean context of a decoding sequence in tokens, by role; a usual prompt's if nothing decodes."""
        usual = self._demand.usual_tokens + self._demand.usual_start
        sums = {"prefill": [0, 0], "decode": [0, 0]}
        for worker in self._workers:
            backlog, _ = worker.backlog(self._now)
            sums[worker.record.role][0] += backlog.sequences
            sums[worker.record.role][1] += backlog.context
        return {role: context / count if count else usual for role, (count, context) in sums.items()}


def _standing(worker: Worker, costs: StepCosts, demand: Demand, context: float, now: float) -> WorkerStanding:
    """Describes one worker. `context`: tokens of one decoding sequence."""
    backlog, report_age = worker.backlog(now)
    record, load, per_step = worker.record, worker.record.load, worker.decode_yield
    prompt = PromptWork(max(1, round(demand.usual_tokens)), round(demand.usual_start))
    idle = Backlog(sequences=backlog.sequences, context=backlog.context)
    in_order = structs.replace(backlog, shares=(), lengths=(0,) * LENGTH_CLASSES)  # no tenant's or short prompt first
    sequences, tokens = backlog.sequences + 1, backlog.context + round(context)
    known = costs.known
    return WorkerStanding(
        worker=record.epoch,
        address=record.address,
        usable=worker.usable and not worker.late,
        draining=record.draining,
        age=report_age,
        queued_tokens=backlog.tokens,
        sequences=backlog.sequences,
        waiting=load.waiting,
        ttft=first_token_seconds(costs, in_order, prompt, report_age, worker.awaited()) if known else None,
        ttft_alone=first_token_seconds(costs, idle, prompt) if known else None,
        tpot=costs.token_seconds(sequences, tokens, per_step) if known else None,
        tpot_alone=costs.token_seconds(1, round(context), per_step) if known else None,
        blocks=load.blocks_total,
        free_blocks=backlog.free_blocks,
        found_tokens=load.kv.found_tokens,
    )
