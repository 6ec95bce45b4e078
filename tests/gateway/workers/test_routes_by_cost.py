"""Routes by cost, as a table: who waits least, who has the KV, what running sequences would lose, what is too old."""

import struct
from collections import Counter
from math import inf

import pytest
from msgspec import structs

from contracts.ids import NO_TICKET, Ticket
from contracts.messages.gateway import NOT_HEARD, KeyNews
from gateway.workers.router import Router
from gateway.workers.shortlist import MAX_WORKERS_PRICED
from gateway.workers.worker import YIELD_MEMORY_STEPS, Worker
from infra.redis.records import KVLink, Memory, Role, UnreachedPeer, WorkerRecord
from infra.redis.worker_load import SpeculationCounts, WorkerLoad
from pricing.routes.backlog import Backlog, PromptWork, TenantTokens, owner_of
from pricing.routes.links import HostLocation
from pricing.routes.route import Choice, Route, RouteRequest
from pricing.step_costs.steps import DecodeYield, StepCosts
from tests.gateway.workers.listed import listed

STEP_COSTS = StepCosts(
    step=0.010, prompt_token=0.001, pair=1e-7, sequence=0.001, context_token=1e-6, most_tokens=512, target=0.050
)
"""1,000 prompt tokens a second: a prompt of 500 tokens takes half a second, a step of a few sequences some 15 ms."""
SLOW = structs.replace(STEP_COSTS, step=0.300, prompt_token=0.005)
"""A step takes longer than anybody's usual objective, whatever is in it."""
BLOCK_TOKENS = 16
NOWHERE = HostLocation()
NOW_S = 100.0


def worker(
    epoch: str,
    role: Role,
    backlog: Backlog | None = None,
    *,
    has: int = 0,
    costs: StepCosts = STEP_COSTS,
    rates: dict[str, float] | None = None,
    content: str = "c",
    place: HostLocation = NOWHERE,
    unreached: tuple[str, ...] = (),
) -> Worker:
    """`has`: leading blocks of the prompt. `rates`: of its links, bytes per second. `unreached`: by epoch."""
    links = [KVLink(peer, "tcp", True, "none", rate) for peer, rate in (rates or {}).items()]
    record = WorkerRecord(
        epoch, role, "", "", "m", "f", content, BLOCK_TOKENS, 8192, "cpu", "fp32", 0.0,
        load=WorkerLoad(blocks_total=1000, costs=costs), memory=Memory(token_bytes=1000), links=links,
        place=place, unreached=tuple(UnreachedPeer(peer, "tcp://b:1") for peer in unreached),
    )  # fmt: skip
    found = Worker(record)
    found.usable = True
    found.reports(backlog or Backlog(free_blocks=1000), NO_TICKET, NOW_S)
    found.kept.take(KeyNews(NOT_HEARD, 1, struct.pack(f"<{has}Q", *range(has)), b"", 0, 1))
    return found


def asked(tokens: int, *, tpots: dict[str, float] | None = None, tpot: float = inf, output: int = 20) -> RouteRequest:
    keys = {BLOCK_TOKENS: tuple(range(tokens // BLOCK_TOKENS))}
    return RouteRequest(tokens, keys=keys, output_tokens=output, tpots=tpots or {}, tpot=tpot)


def busy(tokens: int = 0, sequences: int = 0, free: int = 1000, age_ms: float = 0.0) -> Backlog:
    return Backlog(
        prompts=tokens > 0, tokens=tokens, sequences=sequences, context=100 * sequences, free_blocks=free, age_ms=age_ms
    )


def picked_from(workers: list[Worker], what: RouteRequest, now: float = NOW_S, avoid: tuple[str, ...] = ()) -> Route:
    """The pair that is chosen where a decode worker computes no prompts."""
    choice = Router(hand_off_always=True).pick(listed(workers), what, now, avoid)
    assert choice is not None
    return choice.route


P: Role = "prefill"
D: Role = "decode"
ROWS: dict[str, tuple[list[Worker], RouteRequest, Route]] = {
    "an idle pair computes and decodes apart": (
        [worker("p", P), worker("d", D)], asked(500), Route("p", "d"),
    ),
    "a long queue is avoided": (
        [worker("p1", P, busy(2000)), worker("p2", P, busy(300)), worker("d", D, busy(0, 2))], asked(500),
        Route("p2", "d"),
    ),
    "KV is worth as much of a queue as it saves": (
        [worker("p1", P, busy(300), has=30), worker("p2", P), worker("d", D, busy(0, 2))], asked(500),
        Route("p1", "d"),
    ),
    "… and no more": (
        [worker("p1", P, busy(600), has=30), worker("p2", P), worker("d", D, busy(0, 2))], asked(500),
        Route("p2", "d"),
    ),
    "a batch that is small is decoded with": (
        [worker("p", P), worker("d1", D, busy(0, 40)), worker("d2", D, busy(0, 4))], asked(500), Route("p", "d2"),
    ),
    "KV on the decode worker need not move": (
        [worker("p", P, rates={"d1": 1e5, "d2": 1e5}), worker("d1", D, busy(0, 8)),
         worker("d2", D, busy(0, 9), has=12)],
        asked(500), Route("p", "d2"),
    ),
    "KV is worth no wait for a better moment: for its own sake": (
        [worker("p", P, rates={"d1": 1e5, "d2": 1e5}), worker("d1", D, busy(0, 8)),
         worker("d2", D, busy(0, 9), has=12)],
        asked(500, tpot=0.0205), Route("p", "d1"),
    ),
    "… nor for the sake of others": (
        [worker("p", P, rates={"d1": 1e5, "d2": 1e5}), worker("d1", D, busy(0, 8)),
         worker("d2", D, busy(0, 9), has=12)],
        asked(500, tpots={"d1": 0.1, "d2": 0.0205}), Route("p", "d1"),
    ),
    "a slow link is avoided": (
        [worker("p", P, rates={"d1": 1e5, "d2": 1e8}), worker("d1", D, busy(0, 4)), worker("d2", D, busy(0, 5))],
        asked(500), Route("p", "d2"),
    ),
    "a chat's next turn is computed where all but its end lies": (
        [worker("p", P, has=20), worker("d1", D, busy(0, 1), has=30), worker("d2", D, busy(0, 1))], asked(500),
        Route("", "d1"),
    ),
    "… though others decode there, if it is little": (
        [worker("p", P, has=20), worker("d1", D, busy(0, 6), has=31), worker("d2", D, busy(0, 6))], asked(500),
        Route("", "d1"),
    ),
    "… but not for what each of many would lose": (
        [worker("p", P, has=20), worker("d1", D, busy(0, 40), has=30), worker("d2", D, busy(0, 40))], asked(500),
        Route("p", "d1"),
    ),
    "… nor where it slows those who run beyond what one of them wants": (
        [worker("p", P, has=20), worker("d1", D, busy(0, 1), has=30)], asked(500, tpots={"d1": 0.020}),
        Route("p", "d1"),
    ),
    "… though what somebody wants elsewhere is nothing to them": (
        [worker("p", P, has=20), worker("d1", D, busy(0, 1), has=30)], asked(500, tpots={"d2": 0.020}),
        Route("", "d1"),
    ),
    "… and where nobody wants anything steps may be as slow as they are": (
        [worker("p", P, has=20, costs=SLOW), worker("d1", D, busy(0, 1), has=30, costs=SLOW)], asked(500),
        Route("", "d1"),
    ),
    "… nor where it is full": (
        [worker("p", P, has=20), worker("d1", D, busy(0, 1, free=31), has=30), worker("d2", D)], asked(500),
        Route("p", "d2"),
    ),
    "a decode worker computes what would wait long": (
        [worker("p", P, busy(5000)), worker("d", D)], asked(100), Route("", "d"),
    ),
    "KV passes only where it means the same": (
        [worker("p", P, content="a"), worker("q", P, content="b"), worker("d", D, content="a")], asked(100),
        Route("p", "d"),
    ),
    "without a prefill worker nobody's objective counts": (
        [worker("d1", D, busy(0, 30)), worker("d2", D, busy(0, 20))],
        asked(500, tpots={"d1": 0.001, "d2": 0.001}), Route("", "d2"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
def test_the_cheapest_route_is_taken(row: str) -> None:
    workers, what, route = ROWS[row]
    for order in (workers, workers[::-1]):
        choice = Router().pick(listed(order), what, NOW_S)
        assert choice is not None and choice.route == route


def test_a_choice_says_what_is_to_be_computed_and_when_it_is_there() -> None:
    workers = [worker("p", P, busy(200), has=30), worker("d", D, busy(0, 4))]
    choice = Router(hand_off_always=True).pick(listed(workers), asked(500), NOW_S)
    assert choice is not None and (choice.tokens, choice.start) == (20, 480)
    assert choice.ttft == pytest.approx(0.010 + 0.220 + 1e-7 * 20 * 490.5)
    assert choice.tpot == pytest.approx(0.010 + 5 * 0.001 + 900e-6)
    whole = Router().pick(listed(workers), asked(480), NOW_S)
    assert whole is not None and (whole.tokens, whole.start) == (1, 479), "the last token is always computed"


def guessed(one: Worker, works: int, accepted: int, proposed: int) -> None:
    """Lets the worker's record count so many more shares of steps, guesses that came true, and guesses."""
    known, load = one.record.load.speculation, one.record.load
    total = accepted + sum(known.accepted)
    counts = SpeculationCounts(known.works + works, 0, known.proposed + proposed, (total,))
    one.renew(structs.replace(one.record, load=structs.replace(load, speculation=counts)), NOW_S)


def test_a_worker_whose_guesses_come_true_gives_its_tokens_sooner() -> None:
    plain, guesses = worker("d1", D, busy(0, 4)), worker("d2", D, busy(0, 9))
    guessed(guesses, 100_000, 110_000, 200_000)
    assert [*guesses.decode_yield] == pytest.approx([2.1, 2.0], rel=0.01)
    choice = Router().pick(listed([worker("p", P), plain, guesses]), asked(500), NOW_S)
    assert choice is not None and choice.route == Route("p", "d2"), "though more decode there"
    assert choice.tpot == pytest.approx((0.010 + 10 * 0.001 + 1400e-6) / 2.1, rel=0.01)


def test_what_guesses_give_is_what_they_gave_lately() -> None:
    one = worker("d", D)
    assert one.decode_yield == DecodeYield()
    for _ in range(20):
        guessed(one, YIELD_MEMORY_STEPS, YIELD_MEMORY_STEPS, 2 * YIELD_MEMORY_STEPS)
    assert [*one.decode_yield] == pytest.approx([2.0, 2.0], rel=0.01)
    guessed(one, 0, 0, 0)
    for _ in range(10):
        guessed(one, YIELD_MEMORY_STEPS, 0, 0)
    assert [*one.decode_yield] == pytest.approx([1.0, 0.0], abs=0.01), "they do not pay any more"
    assert Worker(one.record).decode_yield.tokens == pytest.approx(1 + 20 / 30), "all that another gateway can know"


def test_hand_off_always_means_always() -> None:
    workers = [worker("p", P, busy(5000)), worker("d", D, has=30)]
    short, pair = (Router(always).pick(listed(workers), asked(500), NOW_S) for always in (False, True))
    assert short is not None and short.route == Route("", "d")
    assert pair is not None and pair.route == Route("p", "d")


def test_who_is_late_or_avoided_or_full_is_chosen_if_nobody_else_is_there() -> None:
    workers = [worker("p1", P), worker("p2", P, busy(3000)), worker("d", D, busy(0, 30))]
    workers[0].late = True
    assert picked_from(workers, asked(500)) == Route("p2", "d")
    workers[0].late = False
    assert picked_from(workers, asked(500), avoid=("p1",)) == Route("p2", "d")
    assert picked_from(workers[::2], asked(500), avoid=("p1", "d")) == Route("p1", "d")


def test_equals_take_turns_and_what_was_sent_counts_at_once() -> None:
    router = Router(hand_off_always=True)
    workers = [worker("p1", P), worker("p2", P), worker("d1", D), worker("d2", D)]
    by_epoch = {one.record.epoch: one for one in workers}
    picked: Counter[str] = Counter()
    for number in range(40):
        choice = router.pick(listed(workers), asked(500), NOW_S)
        assert choice is not None
        by_epoch[choice.route.prefill].computes((f"r{number}", 1), PromptWork(choice.tokens, choice.start))
        by_epoch[choice.route.decode].awaits((f"r{number}", 1), 500)
        picked.update(choice.route.workers())
    assert set(picked.values()) == {20}


def test_what_was_sent_counts_until_the_worker_tells_of_it() -> None:
    one = worker("p", P)
    for number, ticket in enumerate((Ticket(5, 0), Ticket(6, 0), NO_TICKET)):
        one.computes((f"r{number}", 1), PromptWork(100))
        one.queued((f"r{number}", 1), ticket)
    assert one.backlog(NOW_S)[0].tokens == 300
    one.reports(busy(100), Ticket(5, 0), NOW_S + 1)
    backlog, elapsed = one.backlog(NOW_S + 1.5)
    assert (backlog.tokens, elapsed) == (300, 0.5), "100 that it tells of, and the two that it does not"
    one.settles(("r1", 1))
    assert one.backlog(NOW_S + 1)[0].tokens == 200


def test_a_prompt_whose_first_token_came_waits_no_more_though_the_worker_has_not_told() -> None:
    one = worker("p", P)
    for number in range(3):
        one.computes((f"r{number}", 1), PromptWork(600))
        one.queued((f"r{number}", 1), Ticket(number + 1, 0))
    told = Backlog(age_ms=300.0).and_prompts([PromptWork(200, 400), PromptWork(600)])
    one.reports(told, Ticket(2, 0), NOW_S)
    assert one.backlog(NOW_S + 0.125) == (told.and_prompts([PromptWork(600)]), 0.125)
    assert one.awaited() == 3 * 512, "of each the last step's, wherever it is"
    one.computed(("r0", 1), NOW_S + 0.25)
    backlog, elapsed = one.backlog(NOW_S + 0.5)
    assert (backlog.tokens, elapsed, backlog.age_ms) == (1200, 0.25, 0.0), "another step runs since then"
    assert backlog.lengths == Backlog().and_prompts([PromptWork(600), PromptWork(600)]).lengths
    one.computed(("r1", 1), NOW_S + 0.6)
    one.computed(("r1", 1), NOW_S + 0.9)  # it may be said twice
    assert one.backlog(NOW_S + 0.9)[0].tokens == 600 and one.awaited() == 512
    one.reports(told, Ticket(3, 0), NOW_S + 1)
    one.settles(("r2", 1))
    assert one.backlog(NOW_S + 1)[0].tokens == told.tokens and one.awaited() == 0, (
        "it was cancelled: its figures say so"
    )


def test_beside_a_tenant_that_floods_another_waits_for_its_turns_only() -> None:
    """Of 5,000 tokens of one tenant as many come before another's 300 as those are, and half of the running step."""
    flooding, other = owner_of("floods", 1.0), owner_of("other", 1.0)
    flood = structs.replace(busy(5000), shares=(TenantTokens(flooding, 5000),))
    workers = [worker("p", P, flood), worker("d", D, busy(0, 30))]
    expected = {}
    for owner in (flooding, other):
        choice = Router(hand_off_always=True).pick(listed(workers), asked(300)._replace(owner=owner), NOW_S)
        assert choice is not None and choice.ttft is not None
        expected[owner] = choice.ttft
    assert expected[flooding] > 5.3
    assert 0.6 + 0.256 < expected[other] < 0.95
    workers[0].computes(("r", 1), PromptWork(1000, 0, other))
    choice = Router(hand_off_always=True).pick(listed(workers), asked(300)._replace(owner=other), NOW_S)
    assert choice is not None and choice.ttft is not None and 2.6 < choice.ttft < 3.1, "what it was sent is its own"


def test_old_figures_are_aged() -> None:
    """Reported 2 s ago, a queue of 2 s is done; one that was reported just now is not."""
    workers = [worker("p1", P, busy(2000)), worker("p2", P, busy(1000)), worker("d", D, busy(0, 30))]
    assert picked_from(workers, asked(500)).prefill == "p2"
    workers[1].reports(busy(1000), NO_TICKET, NOW_S + 2)
    assert picked_from(workers, asked(500), NOW_S + 2).prefill == "p1"


def test_samples_that_are_coming_count_as_running_and_their_blocks_as_taken() -> None:
    workers = [worker("p", P), worker("d1", D, busy(free=50)), worker("d2", D, busy(0, 3))]
    assert picked_from(workers, asked(400)).decode == "d1"
    workers[1].awaits(("r", 1), 500)
    assert workers[1].full(400) and not workers[1].full(200)
    assert picked_from(workers, asked(400)).decode == "d2"
    workers[1].settles(("r", 1))
    assert not workers[1].full(400)


def test_of_many_those_that_promise_most_are_looked_at() -> None:
    prefills = [worker(f"p{n:02}", P, busy(4000)) for n in range(2 * MAX_WORKERS_PRICED)]
    workers = [*prefills, worker("d", D, busy(0, 30))]
    workers[7] = worker("p07", P, busy(300), has=30)
    assert picked_from(workers, asked(500)).prefill == "p07"
    workers[9].own_sequences = -1
    workers[9].reports(busy(0), NO_TICKET, NOW_S)
    workers[7].kept.take(KeyNews(1, 2, b"", struct.pack("<30Q", *range(30))))
    assert picked_from(workers, asked(500)).prefill == "p09"


def test_unknown_costs_leave_it_to_load() -> None:
    workers = [worker("p1", P, busy(9000)), worker("p2", P, costs=StepCosts()), worker("d", D)]
    workers[1].own_sequences = 3
    choice = Router().pick(listed(workers), asked(500), NOW_S)
    assert choice is not None and choice.route == Route("p1", "d") and choice.ttft is None


A, RACK, FAR = HostLocation("a", "1", "rack"), HostLocation("b", "2", "rack"), HostLocation("c", "3", "")


@pytest.mark.parametrize("known", [STEP_COSTS, StepCosts()])
@pytest.mark.parametrize(
    ("at", "chosen"),
    [((A, FAR, RACK), "d0"), ((FAR, RACK, A), "d2"), ((FAR, RACK, FAR), "d1"), ((RACK, FAR, FAR), "d0")],
)
def test_what_costs_the_same_goes_to_the_nearer(known: StepCosts, at: tuple[HostLocation, ...], chosen: str) -> None:
    """By cost the decode worker near the prefill worker; by load alone the prefill worker near the decode worker."""
    near = [worker(f"d{number}", D, costs=known, place=place) for number, place in enumerate(at)]
    if known.known:
        assert picked_from([worker("p", P, place=A), *near], asked(500)).decode == chosen
        return
    some = [worker(f"d{number}", P, costs=known, place=place) for number, place in enumerate(at)]
    assert picked_from([worker("d", D, costs=known, place=A), *some], asked(500)).prefill == chosen


def test_a_measured_link_counts_more_than_nearness() -> None:
    there = [worker("p", P, place=A, rates={"near": 1e5, "far": 1e9}), worker("near", D, place=A)]
    assert picked_from([*there, worker("far", D, place=FAR)], asked(500)).decode == "far"


def test_what_other_links_between_two_hosts_have_shown_holds_for_new_workers() -> None:
    slow = worker("p0", P, busy(5000), place=A, rates={"d0": 1e5})
    there = [slow, worker("p1", P, place=A), worker("d0", D, place=FAR), worker("d1", D, busy(0, 4), place=RACK)]
    assert picked_from(there, asked(500)) == Route("p1", "d1")


@pytest.mark.parametrize("known", [STEP_COSTS, StepCosts()])
def test_a_pair_that_cannot_connect_is_no_way(known: StepCosts) -> None:
    decodes = [worker("d1", D, busy(0, 3), costs=known), worker("d2", D, busy(0, 4), costs=known)]
    first = worker("p", P, costs=known, unreached=("d1",))
    assert picked_from([first, *decodes], asked(500)) == Route("p", "d2")
    first.misses("d2", NOW_S)
    alone = picked_from([first, *decodes], asked(500))
    assert alone.prefill == "" and alone.decode in ("d1", "d2")
    assert picked_from([first, *decodes], asked(500), NOW_S + 10) == Route("p", "d2")


def test_a_choice_says_what_an_idle_worker_only_guesses_and_what_was_ever_shown() -> None:
    learned = structs.replace(STEP_COSTS, steps=50, fastest=0.011)

    def choice(p: StepCosts, d: StepCosts, backlog: Backlog | None = None, others: StepCosts = learned) -> Choice:
        workers = [worker("p", P, costs=p), worker("d", D, backlog, costs=d), worker("e", D, busy(0, 90), costs=others)]
        found = Router(hand_off_always=True).pick(listed(workers), asked(500), NOW_S)
        assert found is not None and found.route == Route("p", "d")
        return found

    known = choice(learned, learned)
    assert (known.ttft_guessed, known.tpot_guessed, known.alone, known.fastest) == (False, False, True, 0.011)
    seeded = choice(STEP_COSTS, STEP_COSTS)
    assert (seeded.ttft_guessed, seeded.tpot_guessed, seeded.fastest) == (True, True, 0.0)
    running = choice(STEP_COSTS, STEP_COSTS, busy(0, 1))
    assert (running.tpot_guessed, running.alone) == (False, False), "what runs there will tell"
    assert choice(learned, learned, others=STEP_COSTS).fastest == 0.0, "the other one may be faster"


def test_what_was_sent_to_a_worker_keeps_it_from_being_idle() -> None:
    idle = worker("d", D)
    assert idle.candidate(asked(1), NOW_S).idle
    idle.awaits(("r", 1), 500)
    assert not idle.candidate(asked(1), NOW_S).idle
    idle.settles(("r", 1))
    idle.own_sequences = 1
    assert not idle.candidate(asked(1), NOW_S).idle
