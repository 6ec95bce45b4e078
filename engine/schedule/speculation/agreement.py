"""Measures how often guesses come true: of everybody's by what they rest on, and of one sequence's beside those.

A guess rests on so many tokens: those of the match that it goes on from, and the guesses before it. What is known of
sequences together says how likely such a guess is; how a sequence's own guesses did beside that, as an odds ratio,
says how much better or worse it does than others. Both forget: a text turns from copying to telling and back.
"""

MOST_EVIDENCE = 32
"""Tokens beyond which a guess is no likelier."""
FIRST_CHANCE, FIRST_WEIGHT = 0.6, 2.0
"""What is assumed of a guess, and how many guesses that counts for."""
KEPT = 0.98
"""What a guess still counts when another of its kind has been judged: some fifty do."""
OWN_KEPT = 0.9
"""The same of a sequence's own: some ten do."""
OWN_WEIGHT = 1.0
"""Guesses that came true, and others that did not, which a sequence is taken to have had."""
SURE = 0.99
"""No guess is likelier than this."""


class Trust:
    """Keeps how one sequence's guesses did, beside what was expected of them."""

    __slots__ = ("expected_right", "expected_wrong", "guessing", "right", "wrong")

    def __init__(self) -> None:
        self.right = self.wrong = self.expected_right = self.expected_wrong = 0.0
        self.guessing = True  # its last chance to guess was taken: it goes on unless that is worse than not to

    @property
    def odds(self) -> float:
        """Returns by how much the odds that a guess comes true are better than those of other sequences."""
        good = (self.right + OWN_WEIGHT) * (self.expected_wrong + OWN_WEIGHT)
        return good / ((self.wrong + OWN_WEIGHT) * (self.expected_right + OWN_WEIGHT))

    def learn(self, right: float, expected: float, tried: float) -> None:
        """Takes note that `right` of `tried` guesses came true, where `expected` were to."""
        self.right = OWN_KEPT * self.right + right
        self.wrong = OWN_KEPT * self.wrong + tried - right
        self.expected_right = OWN_KEPT * self.expected_right + expected
        self.expected_wrong = OWN_KEPT * self.expected_wrong + tried - expected


class Agreement:
    """Keeps how all sequences' guesses did, by the tokens that they rest on."""

    def __init__(self) -> None:
        self._right = [FIRST_CHANCE * FIRST_WEIGHT] * (MOST_EVIDENCE + 1)
        self._tried = [FIRST_WEIGHT] * (MOST_EVIDENCE + 1)

    def chance(self, evidence: int) -> float:
        """Returns how likely a guess comes true that rests on so many tokens, if those before it have."""
        evidence = min(evidence, MOST_EVIDENCE)
        return self._right[evidence] / self._tried[evidence]

    def learn(self, trust: Trust, evidence: int, proposed: int, accepted: int) -> None:
        """Takes note that `accepted` of a sequence's `proposed` guesses came true, of which the first rests on so much.

        Of the others only the next one is known to be wrong: what was guessed behind it has not been judged.
        """
        expected, tried = 0.0, min(proposed, accepted + 1)
        for place in range(tried):
            at = min(evidence + place, MOST_EVIDENCE)
            expected += self._right[at] / self._tried[at]
            self._right[at] = KEPT * self._right[at] + (place < accepted)
            self._tried[at] = KEPT * self._tried[at] + 1
        trust.learn(accepted, expected, tried)
