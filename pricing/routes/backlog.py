"""The work that a worker has accepted and not finished, as reported to gateways: queued prompts, running decodes."""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple
from zlib import crc32

from msgspec import Struct, structs

from pricing.step_costs.steps import pairs_of

MAX_TENANTS_TOLD = 32
"""Tenants that a backlog names; the tokens of further tenants count as if they came before every prompt."""
MAX_OWNERS_REMEMBERED = 1024
LENGTH_CLASSES = 24  # number of length classes: class n holds prompts with 2^(n-1) to 2^n - 1 tokens to compute


class Owner(NamedTuple):
    """Tenant of a prompt."""

    tenant: int = 0  # short hash of the tenant's name, so that figures need not show the name
    weight: float = 1.0  # its share of the service relative to other tenants


@lru_cache(MAX_OWNERS_REMEMBERED)
def owner_of(tenant: str, weight: float) -> Owner:
    """Returns the owner of a tenant's prompts. A hash collision makes a prediction worse and changes nothing else."""
    return Owner(crc32(tenant.encode()), weight)


class TenantTokens(Struct, frozen=True):
    """Part of a backlog that belongs to one tenant."""

    owner: Owner
    tokens: int


def largest_tenants(tokens: Mapping[Owner, int]) -> tuple[TenantTokens, ...]:
    if not tokens:
        return ()
    largest = sorted(tokens.items(), key=itemgetter(1), reverse=True)[:MAX_TENANTS_TOLD]
    return tuple([TenantTokens(owner, tokens) for owner, tokens in largest if tokens > 0])


def tokens_before(tokens: int, owner: Owner, shares: Iterable[TenantTokens], all_tokens: int) -> float:
    """Returns how many of `all_tokens` queued tokens are computed before a new prompt of `tokens` tokens ends.

    Tenants take turns by weight: until the prompt ends, each other tenant has got as many tokens as the owner, in
    proportion to their weights, or all that it has queued. Tokens that are in no share come first.
    """
    others = [share for share in shares if share.owner.tenant != owner.tenant]
    own = all_tokens - sum(share.tokens for share in others)
    until = (own + tokens) / owner.weight
    return own + sum(min(share.tokens, until * share.owner.weight) for share in others)


def length_class(tokens: int) -> int:
    return min(tokens.bit_length(), LENGTH_CLASSES - 1)


class PromptWork(NamedTuple):
    """Prompt that is to be computed."""

    tokens: int
    start: int = 0  # tokens before these, whose KV is present
    owner: Owner = Owner()

    @property
    def pairs(self) -> float:
        """Pairs of a computed token and a token that it attends to."""
        return pairs_of(self.start, self.tokens)


class Backlog(Struct, frozen=True):
    """Unfinished work and free memory of a worker, as they were `age_ms` milliseconds before the report."""

    prompts: int = 0  # prompts that are not fully computed
    tokens: int = 0  # tokens of these prompts that are still to be computed
    pairs: float = 0.0  # pairs of such a token and a token that it attends to
    sequences: int = 0  # sequences that decode
    context: int = 0  # tokens of these sequences
    free_blocks: int = 0  # KV blocks that can be allocated, in the KV group that has fewest
    step_ms: float = 0.0  # duration of a step, moving average
    age_ms: float = 0.0
    shares: tuple[TenantTokens, ...] = ()  # `tokens` by tenant
    lengths: tuple[int, ...] = (0,) * LENGTH_CLASSES  # `tokens` by length class of their prompts

    def and_prompts(self, prompts: Sequence[PromptWork]) -> "Backlog":
        """Returns this backlog with more prompts."""
        if not prompts:
            return self
        tokens = {share.owner: share.tokens for share in self.shares}
        lengths = [*self.lengths]
        for each in prompts:
            tokens[each.owner] = tokens.get(each.owner, 0) + each.tokens
            lengths[length_class(each.tokens)] += each.tokens
        return structs.replace(
            self,
            prompts=self.prompts + len(prompts),
            tokens=self.tokens + sum([each.tokens for each in prompts]),
            pairs=self.pairs + sum([each.pairs for each in prompts]),
            shares=largest_tenants(tokens),
            lengths=tuple(lengths),
        )

    def without(self, prompt: PromptWork) -> "Backlog":
        """Returns this backlog without a prompt, of which no more is subtracted than its owner has queued."""
        shares = {share.owner: share.tokens for share in self.shares}
        own, unnamed = shares.get(prompt.owner, 0), max(0, self.tokens - sum(shares.values()))
        tokens = min(prompt.tokens, own + unnamed)
        shares[prompt.owner] = own - tokens
        return structs.replace(
            self,
            prompts=max(0, self.prompts - 1),
            tokens=self.tokens - tokens,
            pairs=max(0.0, self.pairs - pairs_of(prompt.start, tokens)) if tokens < self.tokens else 0.0,
            shares=largest_tenants(shares),
            lengths=self._lengths_without(prompt, tokens),
        )

    def _lengths_without(self, prompt: PromptWork, tokens: int) -> tuple[int, ...]:
        """Returns `lengths` without `tokens` of a prompt, so that their sum never exceeds the remaining tokens.

        The caller estimates how much of a prompt was computed, so its length class is an estimate: what that class
        lacks is taken from the nearest classes.
        """
        lengths, length = [*self.lengths], length_class(prompt.tokens)
        lengths[length] = max(0, lengths[length] - tokens)
        beyond = sum(lengths) - (self.tokens - tokens)
        if beyond > 0:
            for at in sorted(range(LENGTH_CLASSES), key=lambda at: abs(at - length)):
                taken = min(lengths[at], beyond)
                lengths[at] -= taken
                beyond -= taken
        return tuple(lengths)

    def shorter(self, prompt: PromptWork) -> int:
        """Counts the queued tokens of prompts that are about as long as `prompt`, or shorter, or of unknown length."""
        return self.tokens - sum(self.lengths[length_class(prompt.tokens) + 1 :])

    def before(self, prompt: PromptWork) -> float:
        """Returns the share of the queued tokens that are computed before a new prompt ends, 0 to 1."""
        return (
            tokens_before(prompt.tokens, prompt.owner, self.shares, self.tokens) / self.tokens if self.tokens else 1.0
        )

    def and_sequences(self, sequences: int, context: int) -> "Backlog":
        return structs.replace(self, sequences=self.sequences + sequences, context=self.context + context)
