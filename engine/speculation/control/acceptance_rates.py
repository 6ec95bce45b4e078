"""Estimates acceptance rates of draft tokens: of all sequences by evidence, and each sequence's odds beside them.

The evidence of a draft token is the length of the match that it continues plus the number of draft tokens before it.
All sequences together give an acceptance rate for each amount of evidence; a sequence's own record is an odds ratio
relative to that rate. Both decay, because a text may switch between copying and new text.

Draft tokens of a tree always branch alike, so each index has its own rate: the chance of acceptance given that the
parent was accepted and no earlier sibling was. The rates of siblings therefore never add up to more than 1.
"""

from collections.abc import Sequence

MAX_EVIDENCE = 32
"""Amount of evidence beyond which the acceptance rate is assumed not to rise."""
PRIOR_RATE, PRIOR_WEIGHT = 0.6, 2.0
"""Acceptance rate assumed at the beginning, and its weight in draft tokens."""
RATE_DECAY = 0.98
"""Decay of a draft token's weight for each later one of the same evidence: an average over about 50."""
OWN_DECAY = 0.9
"""Decay in a sequence's own record: an average over about 10 draft tokens."""
OWN_PRIOR_WEIGHT = 0.5
"""Initial number of accepted, and of rejected, draft tokens in a sequence's record."""
LOOKS_PER_REST_STEP, MAX_REST_STEPS = 2, 16
"""Failed lookups for each step of rest, and maximum steps of one rest. A lookup takes about 5 us."""
MAX_LONG_REST_STEPS = 64
"""Maximum steps of one rest while drafting does not pay."""
MAX_RATE = 0.99
"""Upper limit of the estimated acceptance rate."""

JudgedDrafts = Sequence[tuple[int, bool]]
"""Draft tokens that a step has tested: (index, accepted). See `judged_drafts`."""


class Trust:
    """Acceptance record of one sequence relative to all sequences, and the step of its next lookup for draft tokens."""

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
        self.odds = 1.0  # odds of acceptance in this sequence / odds in all sequences
        self.drafting = True  # True: drafts unless that is slower; False: drafts only if that is clearly faster
        self.failures = 0  # consecutive lookups without an accepted draft token
        self.rests_until = 0  # first step with a lookup for draft tokens
        self.long_rest_until = 0  # the same while drafting does not pay; 0: not set yet

    def fails(self, step: int, long_rest: int) -> None:
        """Records a lookup at `step` without an accepted draft token.

        `long_rest`: steps of rest after the first failed lookup while drafting does not pay; doubled by each failure.
        """
        self.rests_until = step + 1 + min(self.failures // LOOKS_PER_REST_STEP, MAX_REST_STEPS)
        self.long_rest_until = step + 1 + min(long_rest << min(self.failures, 8), MAX_LONG_REST_STEPS)
        self.failures += 1

    def succeeds(self) -> None:
        """Records an accepted draft token, which ends the rest."""
        self.failures = self.rests_until = 0
        self.long_rest_until = 1

    def learn(self, right: int, expected: float, tested: int) -> None:
        """Records that `right` of `tested` draft tokens were accepted, and that the rates predicted `expected`."""
        self._right = OWN_DECAY * self._right + right
        self._wrong = OWN_DECAY * self._wrong + tested - right
        self._expected_right = OWN_DECAY * self._expected_right + expected
        self._expected_wrong = OWN_DECAY * self._expected_wrong + tested - expected
        good = (self._right + OWN_PRIOR_WEIGHT) * (self._expected_wrong + OWN_PRIOR_WEIGHT)
        self.odds = good / ((self._wrong + OWN_PRIOR_WEIGHT) * (self._expected_right + OWN_PRIOR_WEIGHT))


def rate_at_odds(rate: float, odds: float) -> float:
    return min(MAX_RATE, rate * odds / (rate * odds + 1 - rate))


class AcceptanceRates:
    """Acceptance rates over all sequences, by evidence."""

    def __init__(self) -> None:
        self._right = [PRIOR_RATE * PRIOR_WEIGHT] * (MAX_EVIDENCE + 1)
        self._tested = [PRIOR_WEIGHT] * (MAX_EVIDENCE + 1)
        self.rates = [PRIOR_RATE] * (MAX_EVIDENCE + 1)
        """By evidence: acceptance rate of a draft token whose parent was accepted."""

    def tokens(self, drafts: int, parents: Sequence[int] = (), odds: float = 1.0) -> list[float]:
        """Returns the expected tokens of a step with the first 0, 1, … `drafts` draft tokens, starting at evidence 0.

        `parents` are as in `Work.parents`; `odds` as in `Trust`.
        """
        tokens = [1.0]
        reached = [
            1.0
        ]  # for the text and each draft token: chance that it is accepted and none of its children so far is
        for index in range(drafts):
            parent = 1 + parents[index] if parents else index
            comes = reached[parent] * rate_at_odds(self.rates[min(index, MAX_EVIDENCE)], odds)
            reached[parent] -= comes
            reached.append(comes)
            tokens.append(tokens[-1] + comes)
        return tokens

    def learn(self, trust: Trust, evidence: int, judged: JudgedDrafts) -> None:
        """Records which draft tokens of a sequence were accepted; the first has this `evidence`."""
        expected = 0.0
        for index, right in judged:
            at = min(evidence + index, MAX_EVIDENCE)
            expected += self.rates[at]
            self._right[at] = RATE_DECAY * self._right[at] + right
            self._tested[at] = RATE_DECAY * self._tested[at] + 1
            self.rates[at] = self._right[at] / self._tested[at]
        trust.learn(sum([right for _, right in judged]), expected, len(judged))
