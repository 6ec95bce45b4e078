"""Measures what the choice of a route costs a gateway: `python -m benchmarks.routes [--workers 10,100,1000]`.

A third of the workers are prefill workers; a fifth have some of the prompt's KV. Each route changes its workers' loads:
they have a sequence more, and the workers of the route before a sequence fewer. Processor time, best of seven rounds.
"""

import argparse
import random
import time

from contracts.ids import NO_TICKET
from gateway.workers.directory import WorkerDirectory
from gateway.workers.router import Router
from gateway.workers.worker import Worker
from infra.redis.records import Role, WorkerRecord
from infra.redis.worker_load import WorkerLoad
from pricing.routes.backlog import Backlog, PromptWork
from pricing.routes.route import RouteRequest
from pricing.step_costs.steps import StepCosts

ROUNDS_MEASURED = 7
ROUTES_PER_ROUND = 200
BLOCK_TOKENS = 16
PROMPT_TOKENS = 500
PROMPT_KEYS = tuple(range(PROMPT_TOKENS // BLOCK_TOKENS))
WORKER_COSTS_S = StepCosts(
    step=0.010, prompt_token=1e-3, pair=1e-7, sequence=1e-3, context_token=1e-6, steps=100, most_tokens=512, target=0.05
)


def drawn_worker(number: int, chance: random.Random) -> Worker:
    role: Role = "decode" if number % 3 else "prefill"
    load = WorkerLoad(blocks_total=1000, costs=WORKER_COSTS_S)
    record = WorkerRecord(
        f"w{number:05}", role, "", "", "m", "f", "c", BLOCK_TOKENS, 8192, "cpu", "fp32", 0.0, load=load
    )
    worker = Worker(record)
    worker.usable = True
    worker.own_sequences = chance.randrange(4)
    queued = [PromptWork(800)] if chance.random() < 0.3 else []
    sequences = chance.randrange(4)
    backlog = Backlog(free_blocks=1000).and_prompts(queued).and_sequences(sequences, 100 * sequences)
    worker.reports(backlog, NO_TICKET, 0.0)
    if chance.random() < 0.2:
        worker.kept.expects(PROMPT_KEYS[: chance.randrange(1, len(PROMPT_KEYS))], 0.0)
    return worker


def route_seconds(count: int) -> float:
    """Returns the processor seconds of a route among this many workers."""
    chance, router = random.Random(count), Router()
    workers = WorkerDirectory[Worker]()
    for number in range(count):
        workers.add(drawn_worker(number, chance))
    request = RouteRequest(PROMPT_TOKENS, keys={BLOCK_TOKENS: PROMPT_KEYS}, output_tokens=20)
    rounds = []
    for _ in range(ROUNDS_MEASURED):
        began = time.process_time()
        busy: list[Worker] = []
        for number in range(ROUTES_PER_ROUND):
            choice = router.pick(workers, request, number / 1000)
            assert choice is not None
            for each in busy:
                each.own_sequences -= 1
            busy = [worker for epoch in choice.route.workers() if (worker := workers.get(epoch)) is not None]
            for each in busy:
                each.own_sequences += 1
        rounds.append((time.process_time() - began) / ROUTES_PER_ROUND)
    return min(rounds)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.routes", description=__doc__)
    parser.add_argument("--workers", default="10,100,1000", help="numbers of workers")
    for count in map(int, parser.parse_args().workers.split(",")):
        print(f"{count} workers: {1000 * route_seconds(count):.2f} ms")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
