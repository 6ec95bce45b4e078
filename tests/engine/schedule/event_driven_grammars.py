"""Grammars that get ready when a test says so, as a scheduler asks for them."""

from collections.abc import Sized


class Grammars:
    """Sequences whose grammars are being prepared, and those that are ready: that changes by an event only."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.done: set[int] = set()

    def ready(self, sequence: int, grammar: str, tokens: Sized, prompt_tokens: int) -> bool:
        assert grammar == "g" and 0 < prompt_tokens <= len(tokens)
        if sequence in self.done:
            return True
        if sequence not in self.asked:
            self.asked.append(sequence)
        return False

    def finish(self, sequence: int) -> None:
        self.asked.remove(sequence)
        self.done.add(sequence)

    def forget(self, sequence: int) -> None:
        self.done.discard(sequence)
        if sequence in self.asked:
            self.asked.remove(sequence)
