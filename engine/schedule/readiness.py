"""Says what a scheduler asks before it has a token drawn: whether it can be told by then what the grammar allows."""

from typing import Protocol


class Readiness(Protocol):
    """Prepares sequences that have a grammar. Called on the engine's thread, in every step: it does not wait."""

    def ready(self, sequence: int, grammar: str, tokens: list[int], prompt_tokens: int) -> bool:
        """Tells whether a sequence, by its id, may be sampled now; else prepares it, and wakes the engine when it is.

        `tokens` is the sequence's own list of all its tokens, the first `prompt_tokens` of them the client's. One that
        can never be prepared is ready: its next step says why it fails.
        """
        ...

    def forget(self, sequence: int) -> None:
        """Takes note that a sequence has ended."""
        ...
