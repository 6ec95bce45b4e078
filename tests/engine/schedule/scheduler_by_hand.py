"""A scheduler over blocks of four tokens, its sequences, and its steps by hand."""

from itertools import count

from contracts.ids import AttemptKey
from contracts.messages.job import Prompt
from contracts.messages.sampling import Limits, Sampling
from engine.blocks.manager import BlockManager
from engine.plan import StepPlan, StepResult
from engine.schedule.chunking import Chunking
from engine.schedule.progress import SequenceProgress
from engine.schedule.scheduler import Scheduler, SchedulerLimits
from engine.schedule.sequence import Sequence
from tests.engine.blocks.test_manager import spec

GREEDY = Sampling(seed=1, temperature=0.0)


def scheduler(
    block_count: int = 100,
    *,
    batch: int = 64,
    sequences: int = 8,
    longest: int = 1000,
    reserve: int = 0,
    in_flight: int = 1,
    block_tokens: int = 4,
    slots: int = 0,
    chunking: Chunking | None = None,
) -> Scheduler:
    """`block_count` blocks of four tokens beside the null block."""
    return Scheduler(
        BlockManager(spec(block_tokens), [block_count + 1], slots),
        SchedulerLimits(
            max_batch_tokens=batch,
            max_sequences=sequences,
            max_model_len=longest,
            growth_reserve=[reserve],
            max_in_flight=in_flight,
        ),
        chunking=chunking,
    )


TENANTS = count()


def job(
    length: int,
    max_tokens: int = 8,
    *,
    hand_off: bool = False,
    landing: bool = False,
    stop: int | None = None,
    salt: str | None = None,
    priority: int = 0,
    tenant: str = "",
) -> Sequence:
    """Makes a sequence of a tenant of its own, which shares no KV, unless `salt` names the tenant."""
    tokens = list(range(100, 100 + length))
    return Sequence(
        AttemptKey(f"r-{length}", 0, 1),
        "gateway",
        Prompt(tokens, length, f"{next(TENANTS)}" if salt is None else salt, priority, tenant=tenant),
        deadline=50.0,
        sampling=GREEDY,
        limits=Limits(max_tokens, () if stop is None else (stop,)),
        hand_off=hand_off,
        landing=landing,
    )


def added(to: Scheduler, *sequences: Sequence) -> None:
    for sequence in sequences:
        to.add(sequence)


def busy(engine: Scheduler) -> bool:
    """Tells whether any sequence runs, waits or lands."""
    load = engine.load()
    return load.running + load.waiting > 0


def planned(of: Scheduler) -> StepPlan:
    plan = of.plan(1.0)
    assert plan is not None
    return plan


def answered(of: Scheduler, plan: StepPlan, token: int = 1, failed: tuple[int, ...] = ()) -> list[SequenceProgress]:
    """Gives every sample of every work the same token."""
    tokens = [
        [token] * len(work.samples) if work.sampling and number not in failed else []
        for number, work in enumerate(plan.works)
    ]
    progress = of.apply(StepResult(plan.step, tokens, list(failed)), 2.0)
    of.check_invariants()
    return progress


def step(of: Scheduler, token: int = 1) -> list[tuple[int, int, int]]:
    """Plans and answers one step: (sequence, start, tokens) of each work."""
    plan = planned(of)
    answered(of, plan, token)
    return [(work.sequence, work.start, len(work.token_ids)) for work in plan.works]
