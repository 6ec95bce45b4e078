"""Says what is asked of the router, and what it has chosen."""

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

from pricing.backlog import Owner


class Route(NamedTuple):
    """Names the workers of an attempt by their epochs; `prefill` is empty on the short path."""

    prefill: str
    decode: str

    def workers(self) -> tuple[str, ...]:
        """Returns both epochs, or the only one."""
        return (self.prefill, self.decode) if self.prefill else (self.decode,)

    def first(self) -> str:
        """Returns the epoch of the worker whose stream the job goes to."""
        return self.prefill or self.decode


class Asked(NamedTuple):
    """Says what the router has to know of samples that share a prompt."""

    tokens: int  # of the prompt, with what earlier attempts have emitted
    adapter: str = ""  # its digest
    keys: Mapping[int, tuple[int, ...]] = {}  # of the prompt's full blocks, by their size; see `prompt_keys`
    samples: int = 1
    output_tokens: int = 128  # of each sample, as far as one can tell
    owner: Owner = Owner()
    tpots: Mapping[str, float] = {}  # s that the strictest of those who run on a decode worker wants for each token
    tpot: float = inf  # s for each token that are expected at most where these samples need not wait


class Choice(NamedTuple):
    """Holds a route, and what is expected of it."""

    route: Route
    tokens: int  # of the prompt that the first worker has to compute
    start: int  # tokens before those, whose KV it has
    ttft: float | None = None  # s from now to the first token; None: nobody knows
    tpot: float | None = None  # s for each token of the decode worker then, likewise
    seconds: float = 0.0  # of the prompt's computation alone; 0: nobody knows
    ttft_guessed: bool = False  # its first worker is idle, and has run no step yet that would tell it
    tpot_guessed: bool = False  # its decode worker likewise
    alone: bool = False  # nothing decodes on its decode worker, or is on its way there
    fastest: float = 0.0  # s for each token of the fastest step of all decode workers; 0: one worker has run no step
