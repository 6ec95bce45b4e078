"""The router's shortlist: a choice among many workers is that of a plain walk over all of them."""

import random
import struct
from itertools import chain

import pytest
from msgspec import structs

from contracts.ids import NO_TICKET
from contracts.messages.gateway import NOT_HEARD, KeyNews
from gateway.workers.directory import WorkerDirectory
from gateway.workers.router import Router, cheapest, least_loaded
from gateway.workers.shortlist import MAX_WORKERS_BY_KV, MAX_WORKERS_BY_LOAD, MAX_WORKERS_PRICED
from gateway.workers.worker import Worker
from pricing.routes.backlog import Backlog, PromptWork
from pricing.routes.candidate import Candidate
from pricing.routes.pooled import cost_pools
from pricing.routes.price import prices
from pricing.routes.route import Choice, RouteRequest
from pricing.step_costs.steps import StepCosts
from tests.gateway.workers.listed import listed
from tests.gateway.workers.test_routes_by_cost import BLOCK_TOKENS, NOW_S, STEP_COSTS, D, P, worker

NO_PREFILL: tuple[Candidate | None, ...] = (None,)
PROMPT_BLOCKS = 40


def drawn(chance: random.Random, epoch: str, share_with_kv: float) -> Worker:
    """Draws a worker; of all values there are few, so that many workers are equal."""
    tokens = chance.choice([0, 0, 300, 2000])
    prompts = [PromptWork(tokens)] if tokens else []
    backlog = Backlog(free_blocks=chance.choice([5, 1000, 1000])).and_prompts(prompts)
    backlog = backlog.and_sequences(*chance.choice([(0, 0), (3, 900), (9, 4000)]))
    has = chance.choice([1, 2, 20, 39, 40]) if chance.random() < share_with_kv else 0
    speed = chance.choice([1.0, 1.0, 1.5])
    costs = structs.replace(STEP_COSTS, step=speed * STEP_COSTS.step, steps=chance.choice([0, 4, 900]), fastest=0.01)
    found = worker(epoch, chance.choice([P, D, D]), backlog, has=has, costs=costs)
    found.learned_at = NOW_S - chance.choice([0.0, 5.0, 30.0])
    found.own_sequences = chance.randrange(3)
    found.late = chance.random() < 0.1
    if chance.random() < 0.3:
        expected = chance.randrange(PROMPT_BLOCKS)
        found.kept.expects(tuple(range(expected)), NOW_S)
    return found


def plainly(workers: list[Worker], request: RouteRequest, turn: int) -> Choice | None:
    """The same choice by a candidate of every worker, and the price of every route by itself."""

    def in_turn(role: str) -> list[Candidate]:
        own = sorted((each for each in workers if each.record.role == role), key=lambda each: each.epoch)
        shift = turn % len(own) if own else 0
        return [each.candidate(request, NOW_S) for each in own[shift:] + own[:shift]]

    def promising(candidates: list[Candidate]) -> list[Candidate]:
        if len(candidates) <= MAX_WORKERS_PRICED:
            return candidates
        ready = [each for each in candidates if not each.last_resort[0]] or candidates  # not late
        idle = sorted(ready, key=lambda each: each.load)[:MAX_WORKERS_BY_LOAD]
        near = sorted(candidates, key=lambda each: -each.cached)[:MAX_WORKERS_BY_KV]
        return [each for each in near if each.cached > max(one.cached for one in idle)] + idle

    prefills, decodes = in_turn("prefill"), in_turn("decode")
    if not decodes:
        prefills, decodes = [], prefills
    pools = cost_pools([*prefills, *decodes])
    if not all(each.costs.known for each in (*prefills, *decodes)):
        return least_loaded(prefills, decodes, request.tokens)
    firsts, seconds = promising(prefills), promising(decodes)
    fastest = min(each.costs.fastest for each in seconds)
    routes = [
        prices([first] if first else [], [each], pools, request, False)
        for each in seconds
        for first in firsts or NO_PREFILL
    ]
    pairs_first = sorted(chain.from_iterable(routes), key=lambda each: each.prompt is each.decode)
    by_decode = sorted(pairs_first, key=lambda each: seconds.index(each.decode.candidate))
    return cheapest(by_decode)._replace(fastest=fastest)


@pytest.mark.parametrize("share_with_kv", [0.0, 0.1, 0.5, 1.0])
def test_a_choice_is_that_of_a_walk_over_all_workers(share_with_kv: float) -> None:
    chance = random.Random(round(10 * share_with_kv))
    found = []
    for _ in range(25):
        workers = [drawn(chance, f"w{number:02}", share_with_kv) for number in range(chance.randint(1, 64))]
        router = Router()
        if chance.random() < 0.1:
            load = structs.replace(workers[0].record.load, costs=StepCosts())
            workers[0].renew(structs.replace(workers[0].record, load=load), NOW_S)
        for turn in (1, 2):
            keys = tuple(range(chance.choice([0, 3, PROMPT_BLOCKS])))
            request = RouteRequest(BLOCK_TOKENS * PROMPT_BLOCKS, keys={BLOCK_TOKENS: keys}, output_tokens=20)
            choice = router.pick(listed(workers), request, NOW_S)
            assert choice == plainly(workers, request, turn)
            found.append(choice)
    assert len({choice.route for choice in found if choice is not None}) > 20


def changes(chance: random.Random, directory: WorkerDirectory[Worker], number: int) -> None:
    """Changes a worker as requests, reports, records and deaths do, or adds one."""
    each = chance.choice(list(directory))
    rare = ["usable", "drains", "dies", "comes"]  # what makes the roster anew
    match chance.choice([*8 * ["load", "report", "expects", "record"], *rare]):
        case "load":
            each.own_sequences = chance.randrange(5)
        case "report":
            had, has = len(each.kept), chance.randrange(PROMPT_BLOCKS)  # of leading blocks
            kept, lost = (struct.pack(f"<{len(keys)}Q", *keys) for keys in (range(had, has), range(has, had)))
            each.kept.take(KeyNews(each.kept.heard, each.kept.heard + 1, kept, lost))
        case "expects":
            each.kept.expects(tuple(range(chance.randrange(PROMPT_BLOCKS))), NOW_S + number)
        case "record":
            load = structs.replace(each.record.load, running=chance.randrange(6))
            each.renew(structs.replace(each.record, load=load), NOW_S)
        case "usable":
            each.usable = not each.usable
        case "drains":
            each.renew(structs.replace(each.record, draining=not each.record.draining), NOW_S)
        case "dies":
            directory.remove(each)
            each.usable = False
        case "comes":
            directory.add(drawn(chance, f"new{number:03}", 0.5))


def test_a_choice_follows_all_changes_of_the_workers() -> None:
    """The roster and the index of blocks are kept from request to request: they agree with the workers at each."""
    chance, router = random.Random(6), Router()
    directory = listed(drawn(chance, f"w{number:02}", 0.5) for number in range(48))
    for turn in range(1, 150):
        for _ in range(chance.randrange(8)):
            changes(chance, directory, turn)
        request = RouteRequest(
            BLOCK_TOKENS * PROMPT_BLOCKS, keys={BLOCK_TOKENS: tuple(range(PROMPT_BLOCKS))}, output_tokens=20
        )
        serving = [each for each in directory if each.serves("")]
        assert router.pick(directory, request, NOW_S) == plainly(serving, request, turn)
        roster = directory.serving("")
        assert {*roster.prefills.ring, *roster.decodes.ring} == set(serving)
        for role in (roster.prefills, roster.decodes):
            in_turn = role.ring[turn % 16 :] + role.ring[: turn % 16]
            assert list(role.by_load(turn % 16)) == sorted(in_turn, key=Worker.load)


def test_late_workers_take_no_place_of_workers_that_answer() -> None:
    """Workers that hang keep their low load: were only they priced, the request would go to one of them."""
    hanging = [worker(f"d{number:02}", D) for number in range(MAX_WORKERS_PRICED + 1)]
    busy = [worker(f"e{number:02}", D) for number in range(MAX_WORKERS_PRICED)]
    for each in hanging:
        each.late = True
    for each in busy:
        each.own_sequences = 3
    request = RouteRequest(500, output_tokens=20)
    choice = Router().pick(listed([*hanging, *busy]), request, NOW_S)
    assert choice is not None and choice.route.decode.startswith("e")
    assert Router().pick(listed(hanging), request, NOW_S) is not None


def test_workers_with_other_block_sizes_are_compared_by_tokens() -> None:
    """Of more workers than are listed, all equally loaded, that with most tokens is first, whatever its blocks."""
    idle = [worker(f"d{number:02}", D) for number in range(3 * MAX_WORKERS_PRICED)]
    large = worker("large", D)
    large.renew(structs.replace(large.record, block_tokens=4 * BLOCK_TOKENS), NOW_S)
    large.kept.take(KeyNews(NOT_HEARD, 1, struct.pack("<5Q", *range(100, 105)), b"", 0, 1))
    small = worker("small", D, has=12)
    for each in (large, small):
        each.reports(Backlog(free_blocks=1000), NO_TICKET, NOW_S)
        each.own_sequences = 50
    request = RouteRequest(
        500, keys={BLOCK_TOKENS: tuple(range(31)), 4 * BLOCK_TOKENS: tuple(range(100, 107))}, output_tokens=20
    )
    choice = Router().pick(listed([*idle, small, large]), request, NOW_S)
    assert choice is not None and choice.route.decode == "large" and choice.start == 5 * 4 * BLOCK_TOKENS
