"""The interface by which a scheduler asks whether a sequence's grammar is prepared, before a token is drawn."""

from typing import Protocol


class Readiness(Protocol):
    """Prepares sequences that have a grammar. Called on the engine's thread in every step, so it never waits."""

    def ready(self, sequence: int, grammar: str, tokens: list[int], prompt_tokens: int) -> bool:
        """Tells whether a sequence, by its id, may be sampled now; if not, prepares it and wakes the engine then.

        `tokens` is the sequence's own list of all its tokens, the first `prompt_tokens` of them the client's. A
        sequence that can never be prepared counts as ready: its next step gives the reason.
        """
        ...

    def forget(self, sequence: int) -> None: ...
