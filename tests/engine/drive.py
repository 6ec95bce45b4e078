"""The least scheduler that drives an executor: every sequence gets a chunk of its prompt, or one token, per step."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import structs

from contracts.kv.spec import KVGroup, blocks_for
from contracts.messages.sampling import Sampling
from engine.executor import Executor
from engine.plan import NULL_BLOCK, PENDING_TOKEN, StepPlan, Work
from tests.reference import Golden

GREEDY = Sampling(seed=0, temperature=0.0)


@dataclass
class Running:
    """A sequence under way; `planned` tokens are computed or on their way to be."""

    number: int
    prompt: list[int]
    groups: tuple[KVGroup, ...]
    blocks: list[list[int]]  # of each group
    sampling: Sampling = GREEDY
    adapter: str = ""  # digest
    begin: int = 0  # step that it joins at
    planned: int = 0
    text: list[int] = field(init=False)  # the prompt, and the output so far
    asked: int = 0  # output tokens that are known or on their way

    def __post_init__(self) -> None:
        self.text = list(self.prompt)

    def tables(self) -> tuple[list[int], ...]:
        """Returns the table of each group as the next token needs it: null blocks stand before a window."""
        firsts = [group.first_needed(self.planned) for group in self.groups]
        return tuple([NULL_BLOCK] * first + own[first:] for first, own in zip(firsts, self.blocks, strict=True))

    @property
    def output(self) -> list[int]:
        """Returns the tokens that were collected."""
        return self.text[len(self.prompt) :]


def start(
    executor: Executor,
    prompts: list[list[int]],
    new_tokens: int,
    *,
    samplings: list[Sampling] | None = None,
    stagger: int = 0,
    adapters: Sequence[str] | None = None,
) -> list[Running]:
    """Sequences with blocks in random order, in each group another, joining `stagger` steps after each other."""
    pool, draw = executor.engine.pool, random.Random(0)
    free = [draw.sample(range(1, count), count - 1) for count in pool.counts]
    running = []
    for number, prompt in enumerate(prompts):
        count = blocks_for(len(prompt) + new_tokens, pool.spec.groups[0].block_tokens)
        assert all(len(blocks) >= count for blocks in free), "the test's pool is too small"
        own = [[blocks.pop() for _ in range(count)] for blocks in free]
        sampling = samplings[number] if samplings else GREEDY
        adapter = adapters[number] if adapters else ""
        running.append(Running(number, prompt, pool.spec.groups, own, sampling, adapter, begin=number * stagger))
    return running


def next_plan(step: int, running: list[Running], new_tokens: int, chunk: int) -> StepPlan:
    """One chunk, or one token, for everybody who is not done; tokens not collected yet are `PENDING_TOKEN`."""
    works = []
    for each in running:
        if step < each.begin or each.asked == new_tokens:
            continue
        end = min(each.planned + chunk, len(each.prompt)) if each.planned < len(each.prompt) else each.planned + 1
        ids = each.text[each.planned : end] or [PENDING_TOKEN]
        last = end >= len(each.prompt)
        sampling = each.sampling if last else None
        text = each.text if sampling is not None and sampling.looks_back else None
        blocks, prompt = each.tables(), len(each.prompt)
        work = Work(each.number, each.planned, ids, blocks, sampling, (0,), each.asked, text, prompt)
        works.append(structs.replace(work, adapter=each.adapter))
        each.planned = end
        each.asked += last
    return StepPlan(step, works)


def run(
    executor: Executor, running: list[Running], new_tokens: int, *, chunk: int = 16, ahead: bool = False
) -> list[list[int]]:
    """Runs everybody to `new_tokens` outputs; `ahead` launches each step before the one before it is collected."""
    waiting: list[StepPlan] = []
    step = 0
    while True:
        plan = next_plan(step, running, new_tokens, chunk)
        if plan.works:
            executor.launch(plan)
            waiting.append(plan)
        elif not waiting and all(each.asked == new_tokens for each in running):
            return [each.output for each in running]
        if waiting and (len(waiting) == 2 or not ahead or not plan.works):
            collect(executor, waiting.pop(0), running)
        step += 1


def answers(
    executor: Executor,
    expected: list[Golden],
    *,
    chunk: int = 16,
    ahead: bool = False,
    stagger: int = 0,
    adapter: str = "",
) -> list[list[int]]:
    """Answers the prompts of known answers together, with as many tokens as each has there."""
    prompts, new_tokens = [each.prompt for each in expected], len(expected[0].tokens)
    running = start(executor, prompts, new_tokens, stagger=stagger, adapters=[adapter] * len(prompts))
    return run(executor, running, new_tokens, chunk=chunk, ahead=ahead)


def collect(executor: Executor, plan: StepPlan, running: list[Running]) -> None:
    """Gives the tokens of the oldest step to their sequences."""
    result = executor.collect()
    assert result.step == plan.step and not result.failed
    for work, tokens in zip(plan.works, result.tokens, strict=True):
        running[work.sequence].text.extend(tokens)
