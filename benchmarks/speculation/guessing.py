"""Makes what guesses tokens in these benchmarks: as a decode worker does."""

from engine.blocks.manager import BlockManager
from engine.schedule.speculation import Speculation
from engine.speculation.control.controller import DraftController
from engine.speculation.proposers.ngram import NGramProposer
from engine.speculation.proposers.proposer import EngineProposer
from pricing.fit import StepFit

MAX_DRAFT_TOKENS = {"ngram": 16, "medusa": 4, "draft": 8}


def guessing(who: str, tree: tuple[int, ...], blocks: BlockManager, fit: StepFit) -> Speculation:
    proposer = NGramProposer() if who == "ngram" else EngineProposer()
    most = MAX_DRAFT_TOKENS[who]
    return Speculation(blocks, proposer, most, DraftController(fit, most, proposer.in_engine, tree))
