"""The interface for preparing sequences' grammars before tokens are sampled."""

from collections.abc import Sequence
from typing import Protocol


class Readiness(Protocol):
    """Prepares sequences that have a grammar. Called on the engine's thread in every step, so it never waits."""

    def ready(self, sequence: int, grammar: str, tokens: Sequence[int], prompt_tokens: int) -> bool:
        """Returns whether a sequence, by id, may be sampled now. If not, prepares it and then wakes the engine.

        `tokens` is the sequence's own array of all its tokens, of which the first `prompt_tokens` are the client's. A
        sequence that can never be prepared counts as ready: its next step reports the reason.
        """
        ...

    def forget(self, sequence: int) -> None: ...
