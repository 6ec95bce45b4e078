"""The router's question and answer: samples that share a prompt, and the workers that serve them."""

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

from pricing.routes.backlog import Owner


class Route(NamedTuple):
    """Workers of an attempt, by their epochs; `prefill` is empty on the short path (the decode worker computes all)."""

    prefill: str
    decode: str

    def workers(self) -> tuple[str, ...]:
        """Returns the epochs: two, or one on the short path."""
        return (self.prefill, self.decode) if self.prefill else (self.decode,)

    def first(self) -> str:
        """Returns the epoch of the worker that computes the prompt, to whose stream the job goes."""
        return self.prefill or self.decode


class RouteRequest(NamedTuple):
    """Samples that share a prompt, as far as they matter to the price of a route."""

    tokens: int  # tokens of the prompt, including the output of earlier attempts
    adapter: str = ""  # digest of the adapter
    keys: Mapping[int, tuple[int, ...]] = {}  # short keys of the prompt's full blocks, by block size
    samples: int = 1
    output_tokens: int = 128  # expected tokens of each sample
    owner: Owner = Owner()
    tpots: Mapping[str, float] = {}  # strictest s per token wanted by the sequences on a decode worker, by its epoch
    tpot: float = inf  # highest expected s per token at which these samples need not wait
    pooled: bool = False  # a result of the prompt is wanted, and no tokens: one worker computes it


class Choice(NamedTuple):
    """Chosen route and its predictions; None: unknown, since a worker's step costs are."""

    route: Route
    tokens: int  # tokens of the prompt that the first worker has to compute
    start: int  # tokens before these, whose KV the first worker has
    ttft: float | None = None  # s from now to the first token
    tpot: float | None = None  # s per token on the decode worker, with these samples
    seconds: float = 0.0  # s of the prompt's computation alone; 0: unknown
    ttft_guessed: bool = False  # the first worker is idle, and has run no step that could confirm its costs
    tpot_guessed: bool = False  # likewise the decode worker
    alone: bool = False  # nothing decodes on the decode worker, or is on its way there
    fastest: float = 0.0  # s per token of the fastest step of all decode workers; 0: some worker has run no step
