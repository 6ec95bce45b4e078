"""Delays decodes on a CPU while prefill workers of the host compute prompts for more sequences than decode.

All of them wait for the same cores: a decode step delays each prompt that is computed for this worker, and a rest
delays each sequence that decodes. So the larger number goes first. Still, steps with decodes begin at most `step_s`
apart, plus a chunk of a prompt that this worker computes by itself: a rest takes only time that the objective leaves.
"""

CHECK_INTERVAL_S = 0.005
"""Longest time until a resting worker checks again whether others compute."""


class Resting:
    """Decides in each round whether the decodes rest."""

    def __init__(self, step_s: float) -> None:
        """`step_s`: maximum seconds from one step with decodes to the next; 0: decodes never rest."""
        self._step_s = step_s
        self._due = 0.0  # s, when decodes rest no longer

    def seconds(self, now: float, decodes: int, landing: int, others_compute: bool) -> float:
        """Returns the seconds until the next decision; 0 if the decodes are computed now.

        `decodes` sequences can be computed, and KV of `landing` prompts is awaited. `others_compute`: other workers of
        this host are busy. `now` is of any clock, which may jump.
        """
        left = self._due - now
        if others_compute and landing > decodes > 0 and 0 < left <= self._step_s:
            return min(left, CHECK_INTERVAL_S)
        self._due = now + self._step_s
        return 0.0
