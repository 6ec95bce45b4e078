"""Draft tokens in simulated time: the real planning and controller, with an acceptance that is drawn by a rate."""

import random
from collections.abc import Callable

from msgspec import Struct

from engine.blocks.manager import BlockManager
from engine.plan import Proposal, StepPlan, StepResult, Work
from engine.schedule.speculation import Speculation
from engine.speculation.control.controller import DraftController
from engine.speculation.proposers.choices import MAX_CHOICES, Tree, assumed, likeliest
from engine.speculation.proposers.proposer import DraftedSequence, EngineProposer, Proposer
from engine.speculation.verify.verification import parents_of
from pricing.step_costs.fit import StepFit
from pricing.step_costs.steps import StepWork

DRAWN_TOKEN = 1
"""The id of every token that a simulated worker draws, and of every draft token."""
MATCHED_TOKENS = 1
"""Evidence of draft tokens from texts: as if each continued a match of one token."""


class SimulatedDrafts(Struct, frozen=True, kw_only=True):
    """Draft tokens of a decode worker's sequences.

    `most`: draft tokens of a sequence in a step; `acceptance`: the chance that a draft token is accepted if all before
    it were. `pass_seconds`: seconds of the engine's pass that drafts a token for each of these decodes; None: draft
    tokens are found in texts, in no time. `stores`: the passes store KV of draft tokens in the sequences' blocks.
    `heads`: number of Medusa heads, which all draft in one pass, and whose draft tokens form a tree. `acceptance` is
    then the chance of the first head's likeliest token, and `assumed` gives the ratios of the other heads' and ranks'
    chances to it.
    """

    most: int
    acceptance: float
    pass_seconds: Callable[[StepWork], float] | None = None
    stores: bool = False
    heads: int = 0

    def tree(self) -> Tree:
        """Returns the tree of draft tokens; without heads it has no choices: a chain."""
        return Tree.of(likeliest(self.heads, min(self.most, MAX_CHOICES), self._chance) if self.heads else ())

    def _chance(self, head: int, rank: int) -> float:
        return assumed(head, rank) * self.acceptance / assumed(0, 0)

    def chances(self) -> list[float]:
        """Returns for each draft token the chance that it is the text's next token, where its parent was accepted."""
        if not self.heads:
            return [self.acceptance] * self.most
        return [self._chance(len(choice) - 1, choice[-1]) for choice in self.tree().choices]

    def speculation(self, blocks: BlockManager, fit: StepFit) -> Speculation:
        proposer: Proposer = EngineProposer() if self.pass_seconds is not None else _TextProposer()
        controller = DraftController(fit, self.most, proposer.in_engine, self.tree().parents)
        return Speculation(blocks, proposer, self.most, controller, stores=self.stores)

    def proposing_s(self, plan: StepPlan) -> float:
        """Returns the seconds in which the engine drafts behind a step: a pass for each token, or one of all heads."""
        asked = [work for work in plan.works if work.propose]
        if self.pass_seconds is None or not asked:
            return 0.0
        context = sum([work.start + len(work.token_ids) for work in asked])
        work = StepWork(sequences=len(asked), context=context)
        passes = 1 if self.heads else max([work.propose for work in asked])
        return passes * self.pass_seconds(work)


class _TextProposer:
    """Finds as many draft tokens as are wanted."""

    in_engine = False

    def propose(self, sequence: DraftedSequence, most: int) -> Proposal:
        return Proposal([DRAWN_TOKEN] * most, MATCHED_TOKENS)

    def ended(self, sequence: DraftedSequence) -> None:
        """Does nothing."""


class DrawnResults:
    """Makes the results of steps. With drafts, how many of them are accepted is drawn, by a seed of its own."""

    def __init__(self, drafts: SimulatedDrafts | None, seed: str) -> None:
        self._chances = drafts.chances() if drafts is not None else []
        self._tree = drafts.tree() if drafts is not None else Tree((), ())
        self._chance = random.Random(seed)

    def of(self, plan: StepPlan, count: int, proposing_s: float) -> StepResult:
        """Returns the result of a step that stands for `count` steps, of which the engine drafted `proposing_s`."""
        accepted = {index: self._accepted(work) for index, work in enumerate(plan.works) if work.proposed}
        tokens = [
            [DRAWN_TOKEN] * (len(accepted.get(index, ())) + count * len(work.samples))
            if work.sampling is not None
            else []
            for index, work in enumerate(plan.works)
        ]
        proposed = {
            index: Proposal([DRAWN_TOKEN] * work.propose, parents=self._tree.parents_of(work.propose))
            for index, work in enumerate(plan.works)
            if work.propose
        }
        return StepResult(plan.step, tokens, accepted=accepted, proposed=proposed, proposing=proposing_s, repeats=count)

    def _accepted(self, work: Work) -> list[int]:
        """Draws the indices of accepted draft tokens, from parent to child; of siblings one at most is accepted."""
        accepted = list[int]()
        drawn: float | None = None  # for all children of the last accepted draft token: each has a part of 0 to 1
        for index, parent in enumerate(parents_of(work)):
            if parent != (accepted[-1] if accepted else -1):
                continue
            if drawn is None:
                drawn = self._chance.random()
            if drawn < self._chances[index]:
                accepted.append(index)
                drawn = None
            else:
                drawn -= self._chances[index]
        return accepted
