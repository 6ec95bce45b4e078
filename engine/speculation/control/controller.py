"""Decides how many guesses a step verifies of a sequence: as many as make its tokens come fastest, often none.

A guess costs a row of the step, and is worth the chance that it and all before it come true. Of a step's seconds each
sequence has a share; with k guesses it has 1 + q₁ + … + qₖ tokens for that and k rows, where qᵢ is the chance that the
first i come true. The best k is where one more row would bring less than what the others bring for their seconds.
(Leviathan et al., 2023, choose one k for all from one chance; here both are of the moment, and seconds are measured.)
Where a step is bound by computing, a row costs as much as a sequence, and no guess pays, however likely it is.

That says which sequences have how many. Whether any of it pays, and up to how many, is tried beside it (`trial.py`),
for what the proposer takes is in no row. An engine's own proposer rests where none pays. Who looks at texts goes on,
shyly: a text that begins to repeat itself is found by looks only, and they cost as little as they are seldom.
"""

from collections.abc import Sequence
from typing import NamedTuple

from engine.speculation.control.acceptance_rates import MOST_EVIDENCE, Agreement, Judged, Trust, likely
from engine.speculation.control.trial import Trial, Tried
from pricing.fit import StepFit

STAY, BEGIN = 1.03, 1.08
"""How much faster a sequence has to be with guesses than without, to go on with them and to begin again. What is about
even does not flicker, and is left out: a look takes some microseconds as well."""
TOGETHER = 0.05
"""The newest step's weight in how many sequences have guesses in the same step, and share what that costs at all."""
LEAST = 0.75
"""The same of an engine's guesses, where they were tried and pay: who does far worse than others is left out."""
STEPS_KEPT = 0.99
"""What the tokens of a step still weigh when the next one with guesses has come: some hundred count."""
FIRST_STEPS = 8.0
"""Steps with a token beyond the first each that are taken to have been, where no more were to be expected."""
PROBE_STEPS = 128
"""Steps between two guesses against what is known, of one sequence each: how else would a change be noticed?"""
PROBE = 2
"""Guesses of such a sequence at most."""


LOOK_SECONDS, LOOKS = 1e-5, 0.005
"""What a look into a text takes, about, and the share of the time that looks may take where they do not pay."""


class Decoding(NamedTuple):
    """Says of a step's decodes what was expected of them, and what is tried with them."""

    sequences: int
    seconds: float  # of the step, without guesses
    tried: Tried
    beyond: float  # tokens beyond one that a sequence's step was expected to give


class Controller:
    """Counts guesses, from what steps cost and how often guesses came true."""

    def __init__(self, fit: StepFit, most: int, in_engine: bool, tree: Sequence[int] = ()) -> None:
        """Begins to count up to `most` guesses of a sequence; `in_engine`: the engine makes them when it is asked.

        `tree`: of each guess, in the order in which they are worth it, the one that it goes on from, as `Work.parents`;
        empty: the one before it.
        """
        self._fit = fit  # learns the costs of the scheduler's steps
        self._in_engine = in_engine
        self._most = most
        self._tree = tuple(tree)
        self._trial = Trial([0, *_powers(most), most] if in_engine else [0, most])
        self._agreement = Agreement()
        self._share = self._row = self._first = 0.0
        self._together = 1.0  # sequences with guesses in a step that has any, on average
        self._since_probe = 0
        self._further = self._foreseen = FIRST_STEPS  # tokens beyond one a step, and those that were to be expected
        self._beyond = self._expected()
        self._tokens = [1.0 + each for each in self._beyond]
        self.allowed = most  # guesses of a sequence in the step that is planned

    def begin(self, sequences: int, context: int, steps: int = 1) -> Decoding:
        """Looks at what the step that is planned now costs: so many sequences decode, of `context` tokens together.

        It is so many steps behind the last one that was looked at.
        """
        costs = self._fit.costs
        seconds = costs.decode_seconds(sequences, context)
        if not self._trial.tries:
            self._beyond = self._expected()
            true = self._further / self._foreseen
            self._tokens = [1 + true * beyond for beyond in self._beyond]
        tried = self._trial.begin(sequences, self._tokens, steps)
        self._share, self._row, self._first = seconds / sequences, costs.row, costs.rows / self._together
        self.allowed = self._trial.counts[tried.arm]
        if self._in_engine:
            self._row, self._first = self._share * self._trial.guess_seconds(tried) if self.pays else 0.0, 0.0
        self._since_probe += steps
        return Decoding(sequences, seconds, tried, self._beyond[tried.arm])

    def verifies(self, sequences: int) -> None:
        """Takes note of a step in which so many sequences have guesses."""
        self._together += TOGETHER * (sequences - self._together)

    def took(self, step: Decoding, seconds: float, tokens: int) -> None:
        """Takes note of what a step of nothing but decodes took, and of its tokens, all together."""
        if step.seconds > 0:
            self._trial.learn(step.tried, seconds / step.seconds)
        if step.tried.settled and step.tried.arm:
            self._further = STEPS_KEPT * self._further + tokens / step.sequences - 1
            self._foreseen = STEPS_KEPT * self._foreseen + step.beyond

    def _expected(self) -> list[float]:
        """Returns how many tokens beyond one a sequence's step may be expected to give, by what can be tried.

        Of texts nothing is expected but what steps gave that were looked for.
        """
        if not self._in_engine:
            return [0.0, 1.0]
        tokens = self._agreement.tokens(self._most, self._tree)
        return [tokens[count] - 1 for count in self._trial.counts]

    @property
    def pays(self) -> bool:
        """Tells whether guesses have paid in such a step as is planned, or whether that is tried."""
        return self.allowed > 0

    @property
    def tries(self) -> bool:
        """Tells whether the step that is planned is one of a few that try a count, each of which is to be looked at."""
        return self._trial.tries

    @property
    def shy_rest(self) -> int:
        """Returns the steps between two looks into a sequence's text where they do not pay."""
        return int(LOOK_SECONDS / (LOOKS * self._share)) + 1 if self._share else 1

    @property
    def probes(self) -> bool:
        """Tells whether it is time for guesses that may not pay."""
        return self._since_probe >= PROBE_STEPS

    def count(self, trust: Trust, evidence: int, offered: int) -> int:
        """Returns how many of a sequence's `offered` guesses are verified; the first rests on `evidence` tokens."""
        if not self._share or not self._row:
            return min(offered, self.allowed) if self._in_engine else offered  # nothing is known
        if self._in_engine:
            count = self._all_or_none(trust, min(offered, self.allowed))
        else:
            count = self._of_text(trust, evidence, offered)
        if not count and self.probes:
            self._since_probe = 0
            return min(PROBE, offered)
        return count

    def _all_or_none(self, trust: Trust, offered: int) -> int:
        """Leaves a sequence out that is far worse off with the guesses that pay for the others."""
        if trust.odds < 1:
            tokens = self._agreement.tokens(offered, self._tree, trust.odds)[-1]
            if tokens * self._share < LEAST * (self._share + offered * self._row):
                return 0
        return offered

    def _of_text(self, trust: Trust, evidence: int, offered: int) -> int:
        """Adds guess after guess, each the next one of a chain, while that makes the sequence's tokens come faster."""
        share, row, chances, odds = self._share, self._row, self._agreement.chances, trust.odds
        tokens, seconds, comes = 1.0, share + self._first, 1.0
        count, best = 0, (STAY if trust.guessing else BEGIN) / share
        for guess in range(offered):
            chance = chances[min(evidence + guess, MOST_EVIDENCE)]
            comes *= likely(chance, odds)
            if comes * seconds <= row * tokens:
                break
            tokens, seconds = tokens + comes, seconds + row
            if tokens > best * seconds:
                count, best = guess + 1, tokens / seconds
        trust.guessing = count > 0
        return count

    def learn(self, trust: Trust, evidence: int, proposed: int, judged: Judged) -> float:
        """Takes note of what came of a sequence's guesses; returns the seconds that they have saved, or cost."""
        self._agreement.learn(trust, evidence, judged)
        return sum([right for _, right in judged]) * self._share - proposed * self._row - self._first


def _powers(most: int) -> list[int]:
    """Returns the powers of 2 below `most`."""
    return [1 << bit for bit in range((most - 1).bit_length())]
