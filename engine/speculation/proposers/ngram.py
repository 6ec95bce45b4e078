"""Drafts from the text itself: the tokens that followed an earlier occurrence of its last tokens.

It suits texts that repeat their prompt: summaries, edits, code, tool calls, quotes (prompt lookup decoding, Saxena,
2023). It needs no model and takes microseconds, but finds nothing in a text without repetition.
"""

from engine.plan import NO_PROPOSAL, Proposal
from engine.speculation.proposers.earlier_answers import EarlierAnswers
from engine.speculation.proposers.proposer import DraftedSequence
from engine.speculation.proposers.suffixes import MAX_MATCH_TOKENS, Suffixes, continued


class NGramProposer:
    """Proposes the tokens after the longest match of a sequence's end, in its own text or in an earlier answer."""

    in_engine = False

    def __init__(self, earlier: EarlierAnswers | None = None) -> None:
        self._earlier = earlier

    def propose(self, sequence: DraftedSequence, max_drafts: int) -> Proposal:
        """Drafts, and keeps the index of the text in `sequence`."""
        if sequence.suffixes is None:
            sequence.suffixes = Suffixes(sequence.plan_length)
        tokens = sequence.tokens
        match = sequence.suffixes.find(tokens)
        if self._earlier is not None and match.length < MAX_MATCH_TOKENS:
            drafts = self._earlier.find(sequence.prompt.salt, tokens, max_drafts, match.length)
            if drafts.tokens:
                return drafts
        return Proposal(continued(tokens, match.position, max_drafts), match.length) if match.length else NO_PROPOSAL

    def ended(self, sequence: DraftedSequence) -> None:
        if self._earlier is not None:
            self._earlier.keep(sequence.prompt.salt, sequence.tokens, sequence.prompt_tokens)
