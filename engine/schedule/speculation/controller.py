"""Decides how many guesses a step verifies of a sequence: as many as make its tokens come fastest, often none.

A guess costs a row of the step, and is worth the chance that it and all before it come true. Of a step's seconds each
sequence has a share; with k guesses it has 1 + q₁ + … + qₖ tokens for that and k rows, where qᵢ is the chance that the
first i come true. The best k is where one more row would bring less than what the others bring for their seconds.
(Leviathan et al., 2023, choose one k for all from one chance; here both are of the moment, and seconds are measured.)
Where a step is bound by computing, a row costs as much as a sequence, and no guess pays, however likely it is.
"""

from collections.abc import Sequence

from core.costs.fit import StepFit
from engine.schedule.speculation.agreement import MOST_EVIDENCE, SURE, Agreement, Judged, Trust

Parents = Sequence[int]

STAY, BEGIN = 1.03, 1.08
"""How much faster a sequence has to be with guesses than without, to go on with them and to begin again. What is about
even does not flicker, and is left out: a look takes some microseconds as well, and a step's first guess more than the
others, which the fit does not tell apart."""
PROBE_STEPS = 128
"""Steps between two guesses against what is known, of one sequence each: how else would a change be noticed?"""
PROBE = 2
"""Guesses of such a sequence at most."""


class Controller:
    """Counts guesses, from what steps cost and how often guesses came true."""

    def __init__(self, fit: StepFit) -> None:
        self._fit = fit  # learns the costs of the scheduler's steps
        self._agreement = Agreement()
        self._share = self._row = 0.0
        self._since_probe = 0
        self.pays = True  # a likely guess pays in the step that is planned

    def begin(self, sequences: int, context: int) -> None:
        """Looks at what the step that is planned now costs: so many sequences decode, of `context` tokens together."""
        costs = self._fit.costs
        self._share = costs.decode_seconds(sequences, context) / max(1, sequences)
        self._row = costs.row
        self._since_probe += 1
        self.pays = SURE * self._share > self._row or not self._share

    @property
    def probes(self) -> bool:
        """Tells whether it is time for guesses that may not pay."""
        return self._since_probe >= PROBE_STEPS

    def count(self, trust: Trust, evidence: int, offered: int, parents: Parents = ()) -> int:
        """Returns how many of a sequence's `offered` guesses are verified; the first rests on `evidence` tokens.

        `parents` says which one each goes on from, as `Work.parents`; their order is that in which they are worth it.
        """
        share, row = self._share, self._row
        if not share or not row:
            return offered  # nothing is known
        chances, odds = self._agreement.chances, trust.odds
        tokens, seconds = 1.0, share
        reached = [1.0]  # of the text, and of each guess: the chance that it comes, and none of its children so far
        count, best = 0, (STAY if trust.guessing else BEGIN) / share
        for guess in range(offered):
            before = 1 + parents[guess] if parents else guess
            chance = chances[min(evidence + guess, MOST_EVIDENCE)]
            comes = reached[before] * min(SURE, chance * odds / (chance * odds + 1 - chance))
            if comes * seconds <= row * tokens and not parents:
                break
            reached[before] -= comes
            reached.append(comes)
            tokens, seconds = tokens + comes, seconds + row
            if tokens > best * seconds:
                count, best = guess + 1, tokens / seconds
        if not count and self.probes:
            self._since_probe = 0
            return min(PROBE, offered)
        trust.guessing = count > 0
        return count

    def learn(self, trust: Trust, evidence: int, proposed: int, judged: Judged) -> float:
        """Takes note of what came of a sequence's guesses; returns the seconds that they have saved, or cost."""
        self._agreement.learn(trust, evidence, judged)
        return sum([right for _, right in judged]) * self._share - proposed * self._row
