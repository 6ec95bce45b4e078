"""Random crowds of requests, of every kind of sampling and with every way to move, and what each answers alone.

A crowd shares small pools with a cache, in steps of few tokens, some of them handed over from another engine, some of
them begun by an attempt that died, some of them released on the way. What each is told must be what it is told alone.
"""

import random
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from contracts.ids import AttemptKey
from contracts.kv.spec import KVGroup
from contracts.messages.job import Prompt
from engine.blocks.manager import BlockManager
from engine.executor import Executor
from engine.grammars.masks import GrammarMasks
from engine.plan import StepPlan, StepResult
from engine.schedule import sequence as sequences
from engine.schedule.progress import SequenceProgress
from engine.schedule.scheduler import Scheduler, SchedulerLimits
from engine.schedule.sequence import SequenceState
from engine.schedule.speculation import Speculation
from engine.speculation.proposers.ngram import NGramProposer
from engine.speculation.proposers.proposer import EngineProposer, Proposer
from engine.speculation.verify.verification import kv_moves
from engine.start.load import LoadedEngine
from tests.engine.grammars.answering import VOCABULARY, masks_of
from tests.engine.questions import LAST_ARRIVAL, Question, question
from tests.engine.speculation.prompting import Prompting
from tests.engine.told_answers import Answer, difference

MAX_ERROR = 1e-4
MAX_TURNS = 10_000
"""After so many a crowd is stuck."""


def _groups(engine: LoadedEngine) -> Iterator[tuple[KVGroup, int]]:
    return zip(engine.pool.spec.groups, engine.pool.counts, strict=True)


class Node:
    """An engine with a scheduler of its own."""

    def __init__(
        self,
        engine: LoadedEngine,
        grammars: GrammarMasks,
        *,
        blocks: int,
        batch: int,
        guesses: int = 0,
        told: Sequence[list[int]] = (),
    ) -> None:
        """`guesses`: for each step of a sequence, by the engine's own proposer, which is `told` texts, or n-grams."""
        self.memory = engine.rank_pools or engine.pool
        proposer = Prompting(engine.proposer, told) if engine.proposer is not None and told else engine.proposer
        self._executor = Executor(engine, constraints=grammars, proposer=proposer)
        self._flying = 0
        self._plans: deque[StepPlan] = deque()
        self._depth = engine.launch_depth
        # Windows take less, so that each group is the one that is short at times.
        counts = [min(count, max(8, blocks * 2 // 3) if group.window else blocks) for group, count in _groups(engine)]
        manager = BlockManager(engine.pool.spec, counts, ahead=batch * engine.launch_depth)
        self.guesses = self.right = self.moved = 0
        stores = engine.follower is not None
        self.scheduler = Scheduler(
            manager,
            SchedulerLimits(
                max_batch_tokens=batch,
                max_sequences=16,
                max_model_len=engine.model_config.max_model_len,
                max_in_flight=engine.launch_depth,
                returns_states=stores,
            ),
            speculation=Speculation(manager, self._proposer(engine), guesses, stores=stores) if guesses else None,
        )

    @staticmethod
    def _proposer(engine: LoadedEngine) -> Proposer:
        return EngineProposer() if engine.proposer is not None else NGramProposer()

    def turn(self) -> list[SequenceProgress]:
        """Plans and launches a step, and collects one if no other can be launched, as a worker does."""
        plan = self.scheduler.plan(0.0)
        self._executor.move(self.scheduler.take_moves())
        if plan is not None:
            self._executor.launch(plan)
            self._flying += 1
            self._plans.append(plan)
        if not self._flying or (plan is not None and self._flying < self._depth):
            return []
        self._flying -= 1
        result: StepResult = self._executor.collect()
        for index, work in enumerate(self._plans.popleft().works):
            accepted = result.accepted.get(index, [])
            self.guesses += len(work.proposed)
            self.right += len(accepted)
            self.moved += len(kv_moves(work, accepted, len(result.tokens[index])))
        return self.scheduler.apply(result, 0.0)

    @property
    def at_rest(self) -> bool:
        """Tells whether nothing is under way."""
        load = self.scheduler.load()
        return not (self._flying or load.running or load.waiting)


class Crowd:
    """Answers questions together, on a prefill and a decode engine."""

    def __init__(self, prefill: Node, decode: Node, alone: dict[int, list[Answer]] | None = None) -> None:
        """`alone`: what questions are told alone; those whose earlier attempt died go on from there."""
        self._prefill, self._decode = prefill, decode
        self._alone = alone
        self.answers: dict[int, list[Answer]] = {}
        self._questions: dict[int, Question] = {}
        self._bases: dict[int, int] = {}
        self._states: dict[int, bytes] = {}  # that were told with a first token
        self._members: dict[int, list[sequences.Sequence]] = {}
        self._parked: dict[
            int, tuple[sequences.Sequence, list[sequences.Sequence]]
        ] = {}  # of prefill; the decode engine's landings

    def ask(self, number: int, asked: Question) -> None:
        """Begins to answer."""
        self._questions[number] = asked
        output: list[int] = []
        if self._alone is not None and asked.died_after and asked.samples == 1:
            before = self._alone[number][0]
            output = before.tokens[: max(0, min(asked.died_after, len(before.tokens) - 1))]
        self._bases[number] = len(output)
        self.answers[number] = [Answer() for _ in range(asked.samples)]
        prompt = Prompt([*asked.prompt, *output], len(asked.prompt))
        handed_over = asked.handed_over and self._alone is not None
        own = self._sequences(number, prompt, sampling=asked.sampling, limits=asked.limits, hand_off=handed_over)
        if handed_over:
            landing = self._sequences(number, prompt, landing=True)
            self._parked[number] = own[0], landing
            self._decode.scheduler.add(landing[0], landing[1:])
            self._prefill.scheduler.add(own[0], own[1:])
            self._members[number] = [*own, *landing]
        else:
            self._decode.scheduler.add(own[0], own[1:])
            self._members[number] = own

    def _sequences(self, number: int, prompt: Prompt, **settings: Any) -> list[sequences.Sequence]:
        keys = [AttemptKey(str(number), sample, 1) for sample in range(self._questions[number].samples)]
        return [sequences.Sequence(key, "gateway", prompt, 1e9, **settings) for key in keys]

    def base(self, number: int) -> int:
        """Returns how many tokens an attempt before this one was able to tell."""
        return self._bases[number]

    def release(self, number: int) -> None:
        """Lets nobody wait for an answer any more; it is none."""
        for each in self._members[number]:
            node = self._decode if each.landing or not each.hand_off else self._prefill
            node.scheduler.release(each)
        self._parked.pop(number, None)
        self.answers[number] = []

    def turn(self) -> None:
        """Lets both engines do a step, and moves what can move."""
        for node in (self._prefill, self._decode):
            for progress in node.turn():
                key = progress.sequence.key
                number = int(key.request)
                if progress.state:
                    self._states[number] = progress.state
                if self.answers[number]:
                    base = self._bases[number]
                    prompt_tokens = progress.sequence.prompt_tokens
                    self.answers[number][key.sample].take(progress, prompt_tokens, base)
        for number, (parked, landing) in list(self._parked.items()):
            answers = self.answers[number]
            if parked.state is SequenceState.PARKED and landing[0].state is SequenceState.LANDING:
                self._move(number, parked, landing)
            elif parked.state is SequenceState.ENDED and all(each.finish or each.failed for each in answers):
                for each in landing:
                    self._decode.scheduler.release(each)
                del self._parked[number]

    def _move(self, number: int, parked: sequences.Sequence, landing: list[sequences.Sequence]) -> None:
        """Copies a prompt's KV from engine to engine, and lets the samples go on that have not ended."""
        going = {at: each for at, each in enumerate(self.answers[number]) if not each.finish}
        for group, (held, table) in enumerate(zip(landing[0].held_blocks, landing[0].blocks, strict=True)):
            sources = parked.blocks[group][held : len(table)]
            for layer in self._decode.memory.spec.groups[group].layers if sources else ():
                read = self._prefill.memory.begin_read(group, layer, sources)
                self._decode.memory.write(group, layer, table[held:], read())
        for at, each in enumerate(landing):
            if at not in going:
                self._decode.scheduler.release(each)
        asked = self._questions[number]
        emitted = {at: list(answer.tokens) for at, answer in going.items()}
        state = self._states.pop(number, b"")
        self._decode.scheduler.adopt(landing[0], emitted, asked.sampling, asked.limits, state)
        self._prefill.scheduler.release(parked)
        del self._parked[number]

    @property
    def at_rest(self) -> bool:
        """Tells whether all is answered."""
        return not self._parked and self._prefill.at_rest and self._decode.at_rest


class Mixture:
    """Asks questions alone, and then together; counts what came to pass."""

    def __init__(
        self,
        engines: tuple[LoadedEngine, LoadedEngine],
        model: Path,
        alone: LoadedEngine | None = None,
        error: float = MAX_ERROR,
    ) -> None:
        """`engines`: of the model, with a pool each: one computes prompts for the other, which answers.

        `alone`: who is asked one question at a time; None: the latter. `error`: maximum difference of scores.
        """
        self._error = error
        self._asked_alone = alone or engines[1]
        self._prefill, self._decode = engines
        self._prefill_grammars, self._decode_grammars = masks_of(model), masks_of(model)
        self.seen: Counter[str] = Counter()

    def wrong(
        self, seed: int, count: int, longest: int = 40, guesses: int = 0, *, prompting: bool = False
    ) -> list[str]:
        """Asks `count` random questions of up to `longest` tokens; says where answers are not those given alone.

        `guesses` are made for each step of a sequence, by an engine that makes some; `prompting`: some are exchanged
        for what is going to come.
        """
        rng = random.Random(seed)
        shared = [rng.randrange(VOCABULARY) for _ in range(64)]
        questions = [question(rng, shared, longest) for _ in range(count)]
        alone = {number: self._alone(asked) for number, asked in enumerate(questions)}
        blocks = rng.randint(12, 40)
        prefill = Node(self._prefill, self._prefill_grammars, blocks=40, batch=rng.choice((16, 64)))
        batch = rng.choice((16, 40, 200))
        told = [[*asked.prompt, *answer.tokens] for number, asked in enumerate(questions) for answer in alone[number]]
        decode = Node(
            self._decode,
            self._decode_grammars,
            blocks=blocks,
            batch=batch,
            guesses=guesses,
            told=told if prompting else (),
        )
        crowd = Crowd(prefill, decode, alone)
        for turn in range(MAX_TURNS):
            for number, asked in enumerate(questions):
                if asked.arrives == turn:
                    crowd.ask(number, asked)
                elif asked.released_at == turn and turn > asked.arrives:
                    crowd.release(number)
            crowd.turn()
            if turn > LAST_ARRIVAL and crowd.at_rest:
                break
        for node in (prefill, decode):
            assert node.at_rest, f"seed {seed}: not at rest after {MAX_TURNS} turns"
            node.scheduler.check_invariants()
        self.seen["preempted"] += decode.scheduler.load().preemptions
        self.seen["guesses"] += decode.guesses
        self.seen["right guesses"] += decode.right
        self.seen["moved"] += decode.moved
        self.seen["forks"] += decode.scheduler.load().kv.forks
        self.seen["found in the cache"] += decode.scheduler.load().kv.found_tokens
        found = []
        for number, asked in enumerate(questions):
            for at, answer in enumerate(crowd.answers[number]):
                expected = alone[number][at]
                self._count(asked, answer)
                if problem := difference(answer, expected.behind(crowd.base(number)), self._error):
                    found.append(f"seed {seed}, question {number}, sample {at}: {problem}: {asked}")
        return found

    def _alone(self, asked: Question) -> list[Answer]:
        engine = self._asked_alone
        node = Node(engine, self._decode_grammars, blocks=engine.pool.counts[0], batch=256)
        crowd = Crowd(node, node)
        crowd.ask(0, asked)
        while not crowd.at_rest:
            crowd.turn()
        return crowd.answers[0]

    def _count(self, asked: Question, answer: Answer) -> None:
        sampling = asked.sampling
        self.seen["answers"] += 1
        self.seen["tokens"] += len(answer.tokens)
        self.seen["failed"] += bool(answer.failed)
        self.seen["stopped"] += answer.finish == "stop"
        self.seen["scored"] += len(answer.scores)
        self.seen["prompts scored"] += bool(answer.prompt_scores)
        self.seen["handed over with a grammar"] += asked.handed_over and bool(sampling.grammar)
        self.seen["handed over and penalized"] += asked.handed_over and sampling.presence_penalty != 0
