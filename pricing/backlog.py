"""Tells what a worker has before it, and predicts when a prompt that comes now has its first token."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import NamedTuple
from zlib import crc32

from msgspec import Struct, structs

from pricing.steps import StepCosts, pairs_of

MOST_TENANTS = 32
"""Tenants that are told apart in what waits; what others have there counts as if it came before everybody's."""


class Owner(NamedTuple):
    """Tells whose a prompt is."""

    tenant: int = 0  # a short hash of the tenant's name, which figures need not show
    weight: float = 1.0  # of the tenant, beside others


def owner_of(tenant: str, weight: float) -> Owner:
    """Returns the owner of a tenant's prompts; that two tenants are taken for one costs a guess and nothing else."""
    return Owner(crc32(tenant.encode()), weight)


class Share(Struct, frozen=True):
    """Holds what of a backlog is one tenant's."""

    owner: Owner
    tokens: int


def shares_of(tokens: Mapping[Owner, int]) -> tuple[Share, ...]:
    """Returns the shares of those tenants that have most."""
    largest = Counter(tokens).most_common(MOST_TENANTS)
    return tuple([Share(owner, tokens) for owner, tokens in largest if tokens > 0])


def tokens_before(tokens: int, owner: Owner, shares: Iterable[Share], all_tokens: int) -> float:
    """Returns how many of the `all_tokens` that wait are computed before a prompt of `tokens` more ends.

    Tenants take turns by weight: until then each of them has got as many as this one, by its weight, or all that it
    has. What is in no share comes before everybody.
    """
    others = [share for share in shares if share.owner.tenant != owner.tenant]
    own = all_tokens - sum(share.tokens for share in others)
    until = (own + tokens) / owner.weight
    return own + sum(min(share.tokens, until * share.owner.weight) for share in others)


LENGTHS = 24
"""Lengths that are told apart: prompts of 2^(n-1) to 2^n - 1 tokens that are to be computed have length n."""


def length_of(tokens: int) -> int:
    """Returns the length of a prompt, by what is to be computed of it."""
    return min(tokens.bit_length(), LENGTHS - 1)


class Ahead(NamedTuple):
    """Describes a prompt that is to be computed."""

    tokens: int
    start: int = 0  # tokens before those, whose KV is there
    owner: Owner = Owner()


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
    shares: tuple[Share, ...] = ()  # of its tokens, by tenant
    lengths: tuple[int, ...] = (0,) * LENGTHS  # of its tokens, by the length of their prompts

    def and_prompt(self, tokens: int, start: int) -> "Backlog":
        """Returns the same with one more prompt, of which `tokens` tokens behind `start` are to be computed."""
        return structs.replace(
            self, prompts=self.prompts + 1, tokens=self.tokens + tokens, pairs=self.pairs + pairs_of(start, tokens)
        )

    def and_prompts(self, prompts: Sequence[Ahead]) -> "Backlog":
        """Returns the same with more prompts."""
        tokens = Counter({share.owner: share.tokens for share in self.shares})
        lengths = [*self.lengths]
        for each in prompts:
            tokens[each.owner] += each.tokens
            lengths[length_of(each.tokens)] += each.tokens
        return structs.replace(
            self,
            prompts=self.prompts + len(prompts),
            tokens=self.tokens + sum([each.tokens for each in prompts]),
            pairs=self.pairs + sum([pairs_of(each.start, each.tokens) for each in prompts]),
            shares=shares_of(tokens),
            lengths=tuple(lengths),
        )

    def without(self, prompt: Ahead) -> "Backlog":
        """Returns the same with one prompt less, of which no more is taken than its owner, or nobody, has there."""
        shares = Counter({share.owner: share.tokens for share in self.shares})
        tokens = min(prompt.tokens, shares[prompt.owner] + max(0, self.tokens - shares.total()))
        shares[prompt.owner] -= tokens
        return structs.replace(
            self,
            prompts=max(0, self.prompts - 1),
            tokens=self.tokens - tokens,
            pairs=max(0.0, self.pairs - pairs_of(prompt.start, tokens)) if tokens < self.tokens else 0.0,
            shares=shares_of(shares),
            lengths=self._lengths_without(prompt, tokens),
        )

    def _lengths_without(self, prompt: Ahead, tokens: int) -> tuple[int, ...]:
        """Returns its lengths without `tokens` of a prompt: there are never more of all lengths than it has tokens.

        How much of a prompt was computed is guessed, and so is its length; what is missing there is of the next ones.
        """
        lengths, length = [*self.lengths], length_of(prompt.tokens)
        lengths[length] = max(0, lengths[length] - tokens)
        beyond = sum(lengths) - (self.tokens - tokens)
        for at in sorted(range(LENGTHS), key=lambda at: abs(at - length)):
            taken = min(lengths[at], max(0, beyond))
            lengths[at] -= taken
            beyond -= taken
        return tuple(lengths)

    def shorter(self, prompt: Ahead) -> int:
        """Counts its tokens of prompts that are about as long as one, or shorter; what is not known is taken for so."""
        return self.tokens - sum(self.lengths[length_of(prompt.tokens) + 1 :])

    def before(self, prompt: Ahead) -> float:
        """Returns the share of its tokens that are computed before a prompt that comes now ends, 0 to 1."""
        return (
            tokens_before(prompt.tokens, prompt.owner, self.shares, self.tokens) / self.tokens if self.tokens else 1.0
        )

    def and_sequences(self, sequences: int, context: int) -> "Backlog":
        """Returns the same with more sequences that decode, of `context` tokens together."""
        return structs.replace(self, sequences=self.sequences + sequences, context=self.context + context)

    def seconds(self, costs: StepCosts) -> float:
        """Predicts the seconds that its prompts take from when it was made, computed beside what decodes."""
        return costs.prompt_seconds(self.tokens, self.pairs, self.sequences, self.context)


LEAST_LEFT = 0.4
"""The share of the running step that is taken to be left, however long it has run: its end would have been heard of."""


def first_token_seconds(
    costs: StepCosts, backlog: Backlog, prompt: Ahead, elapsed: float = 0.0, awaited: int = 0
) -> float:
    """Predicts the seconds until a prompt has its first token that comes behind `backlog`: of its tenant's the last.

    `elapsed`: seconds since the backlog was reported, of which the worker has used all for what it had; but `awaited`
    of its tokens are surely not computed yet, and of these no more than the running step is under way. Other tenants'
    prompts come before it as far as they take turns (`tokens_before`), and the running step does in any case. One that
    is shorter than a step has a share of each step that longer prompts leave to such ones: it waits for the running
    step and for those that are as short, and passes the long ones.
    """
    tokens, start, _ = prompt
    own = costs.prompt_seconds(tokens, pairs_of(start, tokens), backlog.sequences, backlog.context)
    share = backlog.before(prompt)
    mine = structs.replace(backlog, tokens=round(share * backlog.tokens), pairs=share * backlog.pairs)
    all_of_it = mine.and_prompt(tokens, start).seconds(costs)
    known = min(awaited, mine.tokens)
    left = known - (1 - LEAST_LEFT) * min(costs.most_tokens or known, known)
    least = own + (all_of_it - own) * left / mine.tokens if left else own
    in_order = max(least, all_of_it - share * (backlog.age_ms / 1000 + elapsed))
    if share < 1.0:
        running = min(costs.most_tokens or backlog.tokens, backlog.tokens)
        in_order += 0.5 * costs.prompt_token * running
    room = int(costs.shorter * costs.most_tokens)
    if not room or tokens > costs.most_tokens or not any(backlog.lengths[length_of(costs.most_tokens - 1) + 1 :]):
        return in_order
    step = costs.prompt_seconds(costs.most_tokens, pairs_of(0, costs.most_tokens), backlog.sequences, backlog.context)
    return min(in_order, (ceil((share * backlog.shorter(prompt) + tokens) / room) + 0.5) * step)
