"""Predicts what a prompt would take on each worker, and on a pair of them, in seconds for everybody whom it concerns.

For the one that asks: until its first token, and of each step of its answer then. For those that decode where it is to
go: what each of their steps takes longer. And where a decode worker would compute the prompt itself: all of that time,
for each of those, and at least for one, who may come meanwhile; a part of it where one step has room for all. Pure.
"""

from collections.abc import Iterable, Sequence
from math import inf
from typing import NamedTuple

from gateway.workers.route import Asked
from gateway.workers.worker import Worker
from pricing.backlog import Ahead, Backlog, first_token_seconds
from pricing.links import LinkRates, Measured
from pricing.steps import StepCosts, pairs_of, transfer_seconds

LATER = 0.25
"""What a second in the course of an answer counts of one before its first token."""
ONCE = 0.25
"""What one slower step, within the objective, counts of the time that it takes longer; several count as they are."""


class Computed(NamedTuple):
    """Says what a prompt's computation on a worker comes to."""

    worker: Worker
    tokens: int  # to compute
    start: int  # whose KV it has before those
    ttft: float  # s to the first token
    seconds: float  # of the computation alone


class Decoded(NamedTuple):
    """Says what an answer's decoding on a worker comes to."""

    worker: Worker
    costs: StepCosts
    backlog: Backlog
    elapsed: float  # s since that was so
    missing: int  # the prompt's tokens whose KV it does not have, in whole blocks
    tpot: float  # s for each token, of steps with these samples in them
    cost: float  # s of all their steps, and of what others' take longer


def overlap(worker: Worker, asked: Asked) -> int:
    """Returns how many leading tokens of the prompt lie on the worker, in whole blocks."""
    size = worker.record.block_tokens
    return size * worker.kept.blocks(asked.keys.get(size, ()))


def computed(
    worker: Worker, costs: StepCosts, asked: Asked, backlog: Backlog, elapsed: float, awaited: int = 0
) -> Computed:
    """Predicts the prompt's computation on this worker; its last token is always computed."""
    start = min(overlap(worker, asked), asked.tokens - 1)
    tokens = asked.tokens - start
    ttft = first_token_seconds(costs, backlog, Ahead(tokens, start, asked.owner), elapsed, awaited)
    return Computed(worker, tokens, start, ttft, costs.prompt_seconds(tokens, pairs_of(start, tokens)))


def on_prefill(worker: Worker, costs: StepCosts, asked: Asked, now: float) -> Computed:
    """Predicts the prompt's computation on a prefill worker whose steps cost this much."""
    return computed(worker, costs, asked, *worker.backlog(now), worker.awaited())


def on_decode(worker: Worker, costs: StepCosts, asked: Asked, now: float) -> Decoded:
    """Predicts the answer's decoding on a decode worker whose steps cost this much."""
    backlog, elapsed = worker.backlog(now)
    running = backlog.sequences
    before = costs.token_seconds(running, backlog.context, worker.guessing)
    context = backlog.context + asked.samples * asked.tokens
    tpot = costs.token_seconds(running + asked.samples, context, worker.guessing)
    cost = LATER * asked.output_tokens * (asked.samples * tpot + running * (tpot - before))
    return Decoded(worker, costs, backlog, elapsed, asked.tokens - overlap(worker, asked), tpot, cost)


def link_rates(workers: Iterable[Worker]) -> LinkRates:
    """Gathers what was measured of the links between these workers."""
    records = {worker.record.epoch: worker.record for worker in workers}
    return LinkRates(
        Measured(record.place, records[link.peer].place, link.bytes_per_second)
        for record in records.values()
        for link in record.links
        if link.peer in records
    )


def handed_over(first: Computed, second: Decoded, rates: LinkRates) -> float:
    """Predicts the cost of a pair: KV moves while the prompt is computed, and what is left of it delays the answer."""
    ours, theirs = first.worker.record, second.worker.record
    rate = next((link.bytes_per_second for link in ours.links if link.peer == theirs.epoch), 0.0)
    size = second.missing * ours.memory.token_bytes
    moving = transfer_seconds(size, rate or rates.between(ours.place, theirs.place))
    return first.ttft + max(0.0, moving - first.seconds) + second.cost


def alone(second: Decoded, asked: Asked) -> tuple[Computed, float] | None:
    """Predicts the short path on a decode worker, and its cost.

    None where somebody who runs there has asked for tokens faster than a step with a chunk of this prompt would give.
    Who has asked for nothing bars nothing: what their steps take longer is part of the cost.
    """
    costs, backlog = second.costs, second.backlog
    own = computed(second.worker, costs, asked, backlog, second.elapsed)
    running = backlog.sequences
    chunk = costs.chunk(running, backlog.context)
    guessing = second.worker.guessing
    slower = costs.token_seconds(running, backlog.context, guessing)
    slower += costs.prompt_token * min(own.tokens, chunk) / guessing.tokens
    if running and slower > asked.tpots.get(second.worker.record.epoch, inf):
        return None
    share = ONCE if own.tokens <= chunk else 1.0
    return own, own.ttft + share * max(1, running) * own.seconds + second.cost


def promising(workers: Sequence[Worker], asked: Asked, most: int) -> list[Worker]:
    """Returns at most `most` of many workers: half of them by the KV that they have, the others by their load."""
    if len(workers) <= most:
        return list(workers)
    near = sorted(workers, key=lambda worker: -overlap(worker, asked))[: most // 2]
    free = sorted((worker for worker in workers if worker not in near), key=lambda worker: worker.load())
    return near + free[: most - len(near)]
