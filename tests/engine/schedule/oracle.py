"""A proposer for tests of a scheduler, which knows what the model will draw."""

from engine.plan import Proposal
from engine.speculation.proposers.proposer import DraftedSequence
from tests.engine.strict_executor import STOP, VOCABULARY


class Oracle:
    """A proposer that knows what will come, and errs as often as it is told to; its draws need no state."""

    in_engine = False

    def __init__(self, expected: dict[int, list[int]], right: int, branching: bool) -> None:
        """`right`: of ten guesses, those that are right. `branching`: they go on from any before them."""
        self._expected = expected
        self._right = right
        self._branching = branching

    def propose(self, sequence: DraftedSequence, max_drafts: int) -> Proposal:
        assert max_drafts > 0
        length = len(sequence.tokens)
        known = self._expected[sequence.id][length : length + max_drafts]
        right = [(7 * place + 3 * length) % 10 < self._right for place in range(len(known))]
        if not self._branching:
            return Proposal([token if good else STOP for token, good in zip(known, right, strict=True)])
        tokens: list[int] = []
        parents: list[int] = []
        depths: list[int] = []
        for guess, good in enumerate(right):
            parent = (5 * guess + 3 * length) % (guess + 1) - 1
            depth = depths[parent] + 1 if parent >= 0 else 0
            siblings = {token for token, of in zip(tokens, parents, strict=True) if of == parent}
            wrong = (token for token in range(VOCABULARY) if token not in siblings)
            tokens.append(known[depth] if good and known[depth] not in siblings else next(wrong))
            parents.append(parent)
            depths.append(depth)
        return Proposal(tokens, parents=tuple(parents))

    def ended(self, sequence: DraftedSequence) -> None:
        """What was said is known."""
