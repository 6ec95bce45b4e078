"""Measures how often guesses come true: of everybody's by what they rest on, and of one sequence's beside those.

A guess rests on so many tokens: those of the match that it goes on from, and the guesses before it. What is known of
sequences together says how likely such a guess is; how a sequence's own guesses did beside that, as an odds ratio,
says how much better or worse it does than others. Both forget: a text turns from copying to telling and back.

Guesses that branch always do so alike, so each has a place of its own in their order. It is asked how likely it is if
the one before it came true and none of its siblings so far did: so what is likely of siblings is never more than all.
"""

from collections.abc import Sequence

MOST_EVIDENCE = 32
"""Tokens beyond which a guess is no likelier."""
FIRST_CHANCE, FIRST_WEIGHT = 0.6, 2.0
"""What is assumed of a guess, and how many guesses that counts for."""
KEPT = 0.98
"""What a guess still counts when another of its kind has been judged: some fifty do."""
OWN_KEPT = 0.9
"""The same of a sequence's own: some ten do."""
OWN_WEIGHT = 0.5
"""Guesses that came true, and as many that did not, which a sequence is taken to have had."""
PATIENCE, LONGEST_REST = 2, 16
"""Looks that found no guess which came true for each step of rest, and the most steps of that: one takes some 5 us."""
LONGEST_SHY_REST = 64
"""The most steps of rest where looks do not pay."""
SURE = 0.99
"""No guess is likelier than this."""


Judged = Sequence[tuple[int, bool]]
"""Draft tokens that a step has tested, by index, and whether each was accepted: see `judged_drafts`."""


class Trust:
    """Keeps how one sequence's guesses did, beside what was expected of them."""

    __slots__ = (
        "_expected_right",
        "_expected_wrong",
        "_right",
        "_wrong",
        "failures",
        "guessing",
        "odds",
        "rests_until",
        "shy_until",
    )

    def __init__(self) -> None:
        self._right = self._wrong = self._expected_right = self._expected_wrong = 0.0
        self.odds = 1.0  # by how much the odds of a guess are better than those of other sequences
        self.guessing = True  # it goes on with guesses unless that is slower; if not, unless that is no faster
        self.failures = 0  # looks one after the other that found no guess, or none that came true
        self.rests_until = 0  # step before which nobody looks for any
        self.shy_until = 0  # the same where looks do not pay; 0: that is not settled

    def fails(self, step: int, shy_rest: int) -> None:
        """Takes note of a look at `step` that found no guess which came true.

        `shy_rest`: steps of rest after the first such look, where looks do not pay; they double with each.
        """
        self.rests_until = step + 1 + min(self.failures // PATIENCE, LONGEST_REST)
        self.shy_until = step + 1 + min(shy_rest << min(self.failures, 8), LONGEST_SHY_REST)
        self.failures += 1

    def succeeds(self) -> None:
        """Takes note of a guess that came true."""
        self.failures = self.rests_until = 0
        self.shy_until = 1

    def learn(self, right: int, expected: float, tried: int) -> None:
        """Takes note that `right` of `tried` guesses came true, where `expected` were to."""
        self._right = OWN_KEPT * self._right + right
        self._wrong = OWN_KEPT * self._wrong + tried - right
        self._expected_right = OWN_KEPT * self._expected_right + expected
        self._expected_wrong = OWN_KEPT * self._expected_wrong + tried - expected
        good = (self._right + OWN_WEIGHT) * (self._expected_wrong + OWN_WEIGHT)
        self.odds = good / ((self._wrong + OWN_WEIGHT) * (self._expected_right + OWN_WEIGHT))


def likely(chance: float, odds: float) -> float:
    """Returns the chance of a guess of a sequence whose odds are so many times better than those of this chance."""
    return min(SURE, chance * odds / (chance * odds + 1 - chance))


class Agreement:
    """Keeps how all sequences' guesses did, by the tokens that they rest on."""

    def __init__(self) -> None:
        self._right = [FIRST_CHANCE * FIRST_WEIGHT] * (MOST_EVIDENCE + 1)
        self._tried = [FIRST_WEIGHT] * (MOST_EVIDENCE + 1)
        self.chances = [FIRST_CHANCE] * (MOST_EVIDENCE + 1)
        """Holds how likely a guess comes true if those before it have, by the number of tokens that it rests on."""

    def tokens(self, guesses: int, parents: Sequence[int] = (), odds: float = 1.0) -> list[float]:
        """Returns how many tokens a step with the first 0, 1, … `guesses` is to give, which rest on nothing.

        `parents`: of each guess the one that it goes on from, as `Work.parents`. `odds`: by how much a sequence's are
        better than those of others.
        """
        tokens = [1.0]
        reached = [1.0]  # of the text, and of each guess: the chance that it comes, and none of its children so far
        for guess in range(guesses):
            before = 1 + parents[guess] if parents else guess
            chance = self.chances[min(guess, MOST_EVIDENCE)]
            comes = reached[before] * likely(chance, odds)
            reached[before] -= comes
            reached.append(comes)
            tokens.append(tokens[-1] + comes)
        return tokens

    def learn(self, trust: Trust, evidence: int, judged: Judged) -> None:
        """Takes note of which of a sequence's guesses came true; the first of them rests on so much."""
        expected = 0.0
        for guess, right in judged:
            at = min(evidence + guess, MOST_EVIDENCE)
            expected += self.chances[at]
            self._right[at] = KEPT * self._right[at] + right
            self._tried[at] = KEPT * self._tried[at] + 1
            self.chances[at] = self._right[at] / self._tried[at]
        trust.learn(sum([right for _, right in judged]), expected, len(judged))
