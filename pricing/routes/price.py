"""Price of a route: the predicted seconds that a prompt costs itself, and the sequences that it slows down.

A prompt with n tokens to compute goes to prefill worker p, and its m samples decode on worker d, beside r sequences:

    price = T + max(0, X - C) + D            KV is handed over from p to d
    price = T + k · max(1, r) · C + D        short path: d computes the prompt, too, and all that decode there wait
    D     = a · L · (m·τ₁ + r·(τ₁ - τ₀))

    term    seconds                                                    formula    estimator
    T       until the first token: what p has queued, and the prompt   wait.py    reported backlog, aged
    C       computation of the prompt alone                            steps.py   fit.py (seed.py before any step),
    τ₀, τ₁  per token on d, without and with the samples               steps.py   pooled.py: fresh costs of its kind
    X       transfer of the KV that d lacks                            links.py   measured rates, else a prior

    L = expected tokens of an answer, a = DECODE_WEIGHT, k = SINGLE_STEP_WEIGHT if one step holds the prompt, else 1.

`steps.py`, `fit.py` and `seed.py` are in `pricing/step_costs/`. A promise to a client adds what no worker reports:
`correction.py`, `throughput.py`. Pure; `RouteRequest` is the prompt.
"""

from collections.abc import Iterator, Sequence
from math import inf
from operator import or_

from msgspec import Struct

from pricing.routes.backlog import PromptWork
from pricing.routes.candidate import Candidate
from pricing.routes.links import LinkRates, MeasuredLink
from pricing.routes.pooled import CostPools
from pricing.routes.route import RouteRequest
from pricing.routes.wait import first_token_seconds
from pricing.step_costs.steps import StepCosts, pairs_of

DECODE_WEIGHT = 0.25  # weight of a second in the course of an answer, relative to a second before its first token
SINGLE_STEP_WEIGHT = 0.25  # weight of the delay of running decodes by one longer step; several longer steps count fully
EQUAL_PRICE_SHARE = 0.05
"""Prices that exceed the lowest by at most this share, and `EQUAL_PRICE_S`, are equal: then other reasons decide."""
EQUAL_PRICE_S = 0.001


class WorkerEstimate(Struct, frozen=True, gc=False):
    """The time that one worker would take to compute the prompt and to decode its samples."""

    candidate: Candidate
    tokens: int  # to compute
    start: int  # tokens before these, whose KV the worker has
    ttft: float  # T
    seconds: float  # C
    missing: int  # tokens of the prompt whose KV the worker lacks, in whole blocks
    tpot: float  # τ₁
    decode_seconds: float  # D
    short_price: float  # price of the short path
    short_tpot: float  # s per token of the decodes there, beside a chunk of the prompt; 0 without decodes


class RouteEstimate(Struct, frozen=True, gc=False):
    """Price of one route, which is a short path if both estimates are of one worker."""

    prompt: WorkerEstimate
    decode: WorkerEstimate
    last_resort: tuple[bool, ...]  # reasons to take any other route: late, avoided, full, too slow for an objective
    price: float


class _Leader:
    """The best route so far: it rules out others before all their terms are known."""

    def __init__(self) -> None:
        self._route: RouteEstimate | None = None

    def beats(self, last_resort: tuple[bool, ...], least: float) -> bool:
        """Returns whether a route is worse that has these reasons against it and a price of at least `least`."""
        best = self._route
        if best is None or last_resort < best.last_resort:
            return False
        return last_resort > best.last_resort or least > equal_up_to(best.price)

    def sees(self, route: RouteEstimate) -> None:
        best = self._route
        if best is None or (route.last_resort, route.price) < (best.last_resort, best.price):
            self._route = route


def equal_up_to(price: float) -> float:
    """Returns the highest price that counts as equal to the lowest price."""
    return (1 + EQUAL_PRICE_SHARE) * price + EQUAL_PRICE_S


def prices(
    senders: Sequence[Candidate],
    receivers: Sequence[Candidate],
    pools: CostPools,
    request: RouteRequest,
    hand_off_always: bool,
) -> list[RouteEstimate]:
    """Prices the routes over these prefill and decode workers, whose costs are known, and the short paths.

    Routes that are surely worse than another one are left out: of 144 pairs some ten remain.
    `hand_off_always`: no short path on a decode worker that a prefill worker can hand KV over to. There is also none
    where it would slow running decodes below an objective, unless no other route leads to that decode worker.
    """
    links = _measured([*senders, *receivers])
    estimates = [_estimate(each, pools[each.kind].costs_of(each), request) for each in (*senders, *receivers)]
    firsts, rates = estimates[: len(senders)], LinkRates(links)
    found: list[RouteEstimate] = []
    leader = _Leader()
    for second in estimates[len(senders) :]:
        worker = second.candidate
        wanted = request.tpots.get(worker.epoch, inf)
        own = (*worker.last_resort, second.tpot > min(request.tpot, wanted))
        pairs = [first for first in firsts if first.candidate.reaches(worker)]
        short = RouteEstimate(second, second, own, second.short_price)
        may_be_short = not pairs or (second.short_tpot <= wanted and not hand_off_always)
        if may_be_short and firsts:
            leader.sees(short)
        for first in pairs:
            sender = first.candidate
            both = (*map(or_, sender.last_resort, own), own[-1]) if True in sender.last_resort else own
            if leader.beats(both, first.ttft + second.decode_seconds):
                continue
            size, rate = second.missing * sender.token_bytes, sender.links.get(worker.epoch, 0.0)
            transfer = rates.seconds(size, rate, sender.location, worker.location)
            price = first.ttft + max(0.0, transfer - first.seconds) + second.decode_seconds
            found.append(RouteEstimate(first, second, both, price))
            leader.sees(found[-1])
        if may_be_short:
            found.append(short)  # behind routes by handoff, which come first where all else is equal
    return found


def _estimate(worker: Candidate, costs: StepCosts, request: RouteRequest) -> WorkerEstimate:
    """Estimates the terms that depend on one worker; a prompt's last token is always computed."""
    backlog, each, samples = worker.backlog, worker.decode_yield, request.samples
    start = min(worker.cached, request.tokens - 1)
    tokens = request.tokens - start
    running, context = backlog.sequences, backlog.context
    seconds = costs.prompt_seconds(tokens, pairs_of(start, tokens))
    tpot = costs.token_seconds(running + samples, context + samples * request.tokens, each)
    if running or backlog.tokens:
        prompt = PromptWork(tokens, start, request.owner)
        ttft = first_token_seconds(costs, backlog, prompt, worker.report_age, worker.awaited)
    else:
        ttft = seconds
    slowed = short_tpot = 0.0  # s per token of its decodes: added by the samples; beside a chunk of the prompt
    chunk = min(tokens, costs.chunk(running, context))
    if running:
        before = costs.token_seconds(running, context, each)
        slowed, short_tpot = running * (tpot - before), before + costs.prompt_token * chunk / each.tokens
    decode = DECODE_WEIGHT * request.output_tokens * (samples * tpot + slowed)
    weight = SINGLE_STEP_WEIGHT if chunk == tokens else 1.0
    return WorkerEstimate(
        worker,
        tokens,
        start,
        ttft,
        seconds,
        request.tokens - worker.cached,
        tpot,
        decode,
        ttft + weight * max(1, running) * seconds + decode,
        short_tpot,
    )


def _measured(candidates: Sequence[Candidate]) -> Iterator[MeasuredLink]:
    by_epoch = {each.epoch: each for each in candidates}
    for each in by_epoch.values():
        for peer, rate in each.links.items():
            if peer in by_epoch:
                yield MeasuredLink(each.location, by_epoch[peer].location, rate)
