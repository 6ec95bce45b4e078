"""Estimates how often draft tokens are accepted: over all sequences by their evidence, and of one sequence beside that.

A draft token's evidence is the number of tokens that it rests on: those of the match that it continues, and the draft
tokens before it. All sequences together give the acceptance rate for each amount of evidence. One sequence's own record
beside that rate is an odds ratio. Both forget, because a text turns from copying to telling and back.

Draft tokens of a tree always branch alike, so each index has a rate of its own: that of being accepted if its parent
was and no earlier sibling was. So the rates of siblings never add up to more than 1.
"""

from collections.abc import Sequence

MAX_EVIDENCE = 32
"""Tokens beyond which more evidence makes a draft token no likelier."""
PRIOR_RATE, PRIOR_WEIGHT = 0.6, 2.0
"""Acceptance rate that is assumed at the beginning, and the draft tokens that this counts for."""
RATE_DECAY = 0.98
"""Weight of a draft token when the next one of its evidence has been tested: some fifty count."""
OWN_DECAY = 0.9
"""The same for a sequence's own record: some ten count."""
OWN_PRIOR_WEIGHT = 0.5
"""Accepted draft tokens, and as many rejected ones, that every sequence's record begins with."""
LOOKS_PER_REST_STEP, MAX_REST_STEPS = 2, 16
"""Failed looks for each step of rest, and the most steps of one rest: a look takes some 5 us."""
MAX_LONG_REST_STEPS = 64
"""The most steps of one rest while drafting does not pay."""
MAX_RATE = 0.99
"""No draft token is taken to be likelier than this."""

JudgedDrafts = Sequence[tuple[int, bool]]
"""Draft tokens that a step has tested, by index, and whether each was accepted: see `judged_drafts`."""


class Trust:
    """One sequence's record: how its draft tokens did beside the rates of all, and when it looks for some again."""

    __slots__ = (
        "_expected_right",
        "_expected_wrong",
        "_right",
        "_wrong",
        "drafting",
        "failures",
        "long_rest_until",
        "odds",
        "rests_until",
    )

    def __init__(self) -> None:
        self._right = self._wrong = self._expected_right = self._expected_wrong = 0.0
        self.odds = 1.0  # ratio of this sequence's odds of acceptance to those of all sequences
        self.drafting = True  # it drafts unless that is slower; if False, only where that is clearly faster
        self.failures = 0  # consecutive looks without an accepted draft token
        self.rests_until = 0  # step before which nobody looks for draft tokens
        self.long_rest_until = 0  # the same while drafting does not pay; 0: not set yet

    def fails(self, step: int, long_rest: int) -> None:
        """Records a look at `step` that gave no accepted draft token.

        `long_rest`: steps of rest after the first such look while drafting does not pay; each failure doubles them.
        """
        self.rests_until = step + 1 + min(self.failures // LOOKS_PER_REST_STEP, MAX_REST_STEPS)
        self.long_rest_until = step + 1 + min(long_rest << min(self.failures, 8), MAX_LONG_REST_STEPS)
        self.failures += 1

    def succeeds(self) -> None:
        """Records an accepted draft token: the sequence rests no more."""
        self.failures = self.rests_until = 0
        self.long_rest_until = 1

    def learn(self, right: int, expected: float, tested: int) -> None:
        """Records that `right` of `tested` draft tokens were accepted, where `expected` were to be."""
        self._right = OWN_DECAY * self._right + right
        self._wrong = OWN_DECAY * self._wrong + tested - right
        self._expected_right = OWN_DECAY * self._expected_right + expected
        self._expected_wrong = OWN_DECAY * self._expected_wrong + tested - expected
        good = (self._right + OWN_PRIOR_WEIGHT) * (self._expected_wrong + OWN_PRIOR_WEIGHT)
        self.odds = good / ((self._wrong + OWN_PRIOR_WEIGHT) * (self._expected_right + OWN_PRIOR_WEIGHT))


def rate_at_odds(rate: float, odds: float) -> float:
    """Returns the acceptance rate of a sequence whose odds are `odds` times those of `rate`."""
    return min(MAX_RATE, rate * odds / (rate * odds + 1 - rate))


class AcceptanceRates:
    """Acceptance rates over all sequences, by evidence."""

    def __init__(self) -> None:
        self._right = [PRIOR_RATE * PRIOR_WEIGHT] * (MAX_EVIDENCE + 1)
        self._tested = [PRIOR_WEIGHT] * (MAX_EVIDENCE + 1)
        self.rates = [PRIOR_RATE] * (MAX_EVIDENCE + 1)
        """By evidence: how often a draft token is accepted whose parent was."""

    def tokens(self, drafts: int, parents: Sequence[int] = (), odds: float = 1.0) -> list[float]:
        """Returns the tokens to expect of a step with the first 0, 1, … `drafts` draft tokens, from evidence 0 on.

        `parents` are as in `Work.parents`; `odds` as in `Trust`.
        """
        tokens = [1.0]
        reached = [
            1.0
        ]  # of the text and of each draft token: the chance that it comes, and none of its children so far
        for index in range(drafts):
            parent = 1 + parents[index] if parents else index
            comes = reached[parent] * rate_at_odds(self.rates[min(index, MAX_EVIDENCE)], odds)
            reached[parent] -= comes
            reached.append(comes)
            tokens.append(tokens[-1] + comes)
        return tokens

    def learn(self, trust: Trust, evidence: int, judged: JudgedDrafts) -> None:
        """Records which of a sequence's draft tokens were accepted; the first has this `evidence`."""
        expected = 0.0
        for index, right in judged:
            at = min(evidence + index, MAX_EVIDENCE)
            expected += self.rates[at]
            self._right[at] = RATE_DECAY * self._right[at] + right
            self._tested[at] = RATE_DECAY * self._tested[at] + 1
            self.rates[at] = self._right[at] / self._tested[at]
        trust.learn(sum([right for _, right in judged]), expected, len(judged))
