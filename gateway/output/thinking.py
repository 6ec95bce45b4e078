"""Reads a model's thoughts before its answer: text between two markers, of which the prompt may have the first."""

from dataclasses import dataclass

from gateway.grammar.texts import literal
from gateway.output.lark import LARK_HEAD, TokenId, up_to
from gateway.output.parts import Reasoning
from gateway.output.reader import Markers, OutputReader, Pieces, Steps, as_parts


@dataclass(frozen=True)
class Thinking:
    """A format of thoughts. White space beside its markers belongs to them."""

    name: str  # of `--reasoning-parser`
    opening: str
    closing: str
    title: str = ""  # a word after the opening marker that is not part of the thoughts

    @property
    def markers(self) -> tuple[str, ...]:
        """Returns the special tokens that must be kept as text."""
        return self.opening, self.closing

    def recognises(self, template: str) -> bool:
        return self.closing in template

    def began(self, prompt: str) -> bool:
        """Returns whether the prompt ends inside the thoughts, because its template has opened them."""
        return prompt.rstrip().endswith(self.opening)

    def read(self, reader: OutputReader, prompt: str) -> Steps[None]:
        """Yields the thoughts, and leaves the rest unread."""
        yield from reader.hold_space()
        if not (yield from reader.skip(self.opening)) and not self.began(prompt):
            return
        reader.drop_space()
        yield from reader.space()
        if self.title:
            yield from reader.skip(self.title)
            yield from reader.space()
        yield from as_parts(_trimmed(reader.until(Markers(self.closing))), Reasoning)
        yield from reader.space()

    def before(self, grammar: str, prompt: str, token_id: TokenId) -> str:
        """Returns a grammar with free thoughts before it. They are required if the prompt has begun them."""
        first = "thought" if self.began(prompt) else "(opened thought)?"
        token = token_id(self.opening)
        opened = f"opened: SPACE? (opening{'' if token is None else f' | <[{token}]>'})\n"
        opened += f"opening[lazy]: {literal(self.opening)}\n"
        return (
            f"{LARK_HEAD}start: {first} answer\n"
            + ("" if self.began(prompt) else opened)
            + up_to("thought", self.closing, token_id)
            + f"answer: SPACE? %lark {{\n{grammar}\n}}\n"
        )


THINK_TAGS = Thinking("think", "<think>", "</think>")
SEED_THINK = Thinking("seed_oss", "<seed:think>", "</seed:think>")
COHERE_THINK = Thinking("cohere", "<|START_THINKING|>", "<|END_THINKING|>")
GEMMA_THINK = Thinking("gemma4", "<|channel>", "<channel|>", title="thought")
MISTRAL_THINK = Thinking("mistral", "[THINK]", "[/THINK]")


def _trimmed(pieces: Pieces[str]) -> Pieces[str]:
    space: list[str] = []
    while True:
        try:
            piece = next(pieces)
        except StopIteration as stop:
            return str(stop.value)
        words = piece.rstrip() if piece else ""
        if words:
            yield "".join([*space, words])
            space.clear()
        if piece is None:
            yield None
        elif len(words) < len(piece):
            space.append(piece[len(words) :])
