"""Drafts from the text itself: it continues as it did where its last tokens stood before.

Texts that repeat their prompt are written so: summaries, edits, code, calls of tools, quotes (prompt lookup decoding,
Saxena, 2023). It needs no model and microseconds, and finds nothing in a text that says everything once.
"""

from engine.plan import NO_PROPOSAL, Proposal
from engine.speculation.proposers.earlier_answers import EarlierAnswers
from engine.speculation.proposers.proposer import DraftedSequence
from engine.speculation.proposers.suffixes import MAX_MATCH_TOKENS, Suffixes, continued


class NGramProposer:
    """Proposes what followed the longest end of a sequence's text that stood in it before, or in an earlier answer."""

    in_engine = False

    def __init__(self, earlier: EarlierAnswers | None = None) -> None:
        self._earlier = earlier

    def propose(self, sequence: DraftedSequence, most: int) -> Proposal:
        """Keeps the index of the text in its sequence."""
        if sequence.suffixes is None:
            sequence.suffixes = Suffixes(sequence.plan_length)
        tokens = sequence.tokens
        match = sequence.suffixes.find(tokens)
        if self._earlier is not None and match.length < MAX_MATCH_TOKENS:
            guesses = self._earlier.guess(sequence.prompt.salt, tokens, most, match.length)
            if guesses.tokens:
                return guesses
        return Proposal(continued(tokens, match.place, most), match.length) if match.length else NO_PROPOSAL

    def ended(self, sequence: DraftedSequence) -> None:
        if self._earlier is not None:
            self._earlier.keep(sequence.prompt.salt, sequence.tokens, sequence.prompt_tokens)
