"""Tells what a worker has before it, and predicts when a prompt that comes now has its first token."""

from collections.abc import Sequence
from math import ceil

from msgspec import Struct, structs

from core.costs.steps import StepCosts, pairs_of


class Backlog(Struct, frozen=True):
    """Holds what a worker has taken and not done yet, and its room, as they were `age_ms` milliseconds ago."""

    prompts: int = 0  # that are not computed to their end
    tokens: int = 0  # of these prompts that are still to be computed
    pairs: float = 0.0  # of such a token and one that it attends to
    sequences: int = 0  # that decode
    context: int = 0  # tokens of those
    free_blocks: int = 0  # that may be taken, in the KV group that has fewest
    reserved_blocks: int = 0  # taken for KV that is on its way here
    step_ms: float = 0.0  # what a step takes, as a moving average
    age_ms: float = 0.0

    def and_prompt(self, tokens: int, start: int) -> "Backlog":
        """Returns the same with one more prompt, of which `tokens` tokens behind `start` are to be computed."""
        return structs.replace(
            self, prompts=self.prompts + 1, tokens=self.tokens + tokens, pairs=self.pairs + pairs_of(start, tokens)
        )

    def and_prompts(self, prompts: Sequence[tuple[int, int]]) -> "Backlog":
        """Returns the same with more prompts: for each, tokens to compute, and those before, whose KV is here."""
        return structs.replace(
            self,
            prompts=self.prompts + len(prompts),
            tokens=self.tokens + sum([tokens for tokens, _ in prompts]),
            pairs=self.pairs + sum([pairs_of(start, tokens) for tokens, start in prompts]),
        )

    def and_sequences(self, sequences: int, context: int) -> "Backlog":
        """Returns the same with more sequences that decode, of `context` tokens together."""
        return structs.replace(self, sequences=self.sequences + sequences, context=self.context + context)

    def seconds(self, costs: StepCosts) -> float:
        """Predicts the seconds that its prompts take from when it was made, computed beside what decodes."""
        return costs.prompt_seconds(self.tokens, self.pairs, self.sequences, self.context)


def first_token_seconds(costs: StepCosts, backlog: Backlog, tokens: int, start: int, elapsed: float = 0.0) -> float:
    """Predicts the seconds until a prompt has its first token that comes behind `backlog`, in order of arrival.

    `tokens` of it, behind `start` others, are to be computed. `elapsed`: seconds since the backlog was reported, of
    which the worker has used all for what it had. One that is shorter than a step has a share of each step, if long
    ones leave it that: it waits for the running step and computes in those that follow.
    """
    own = costs.prompt_seconds(tokens, pairs_of(start, tokens), backlog.sequences, backlog.context)
    all_of_it = backlog.and_prompt(tokens, start).seconds(costs)
    in_order = max(own, all_of_it - backlog.age_ms / 1000 - elapsed)
    room = int(costs.shorter * costs.most_tokens)
    if not room or tokens > costs.most_tokens or backlog.tokens <= costs.most_tokens:
        return in_order
    step = costs.prompt_seconds(costs.most_tokens, pairs_of(0, costs.most_tokens), backlog.sequences, backlog.context)
    return min(in_order, (ceil(tokens / room) + 0.5) * step)
