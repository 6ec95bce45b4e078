"""Drafts tokens in these benchmarks as a decode worker does."""

from benchmarks.processes.in_process import MakeSpeculation
from engine.blocks.manager import BlockManager
from engine.schedule.speculation import Speculation
from engine.speculation.control.controller import DraftController
from engine.speculation.proposers.ngram import NGramProposer
from engine.speculation.proposers.proposer import EngineProposer
from pricing.step_costs.fit import StepFit

MAX_DRAFT_TOKENS = {"ngram": 16, "medusa": 4, "draft": 8}


def drafting(method: str, tree: tuple[int, ...] = (), fixed: int = 0) -> MakeSpeculation:
    """Drafts `fixed` tokens in each step; 0: as many as the controller chooses."""

    def make(blocks: BlockManager, fit: StepFit) -> Speculation:
        proposer, most = NGramProposer() if method == "ngram" else EngineProposer(), MAX_DRAFT_TOKENS[method]
        if fixed:
            return Speculation(blocks, proposer, fixed)
        return Speculation(blocks, proposer, most, DraftController(fit, most, proposer.in_engine, tree))

    return make
