"""Reads what a model thinks before it answers: text between two markers, of which the first may be in the prompt."""

from dataclasses import dataclass

from gateway.grammar.texts import literal
from gateway.output.lark import LARK_HEAD, TokenId, up_to
from gateway.output.parts import Reasoning
from gateway.output.reader import Markers, OutputReader, Pieces, Steps, told


@dataclass(frozen=True)
class Thinking:
    """Describes a format of thinking. White space beside its markers belongs to them."""

    name: str  # of `--reasoning-parser`
    opening: str
    closing: str
    title: str = ""  # behind the opening marker, and no thought

    @property
    def markers(self) -> tuple[str, ...]:
        """Returns the special tokens whose text has to be there, where the tokenizer has them."""
        return self.opening, self.closing

    def recognises(self, template: str) -> bool:
        """Returns whether a chat template is one of a model that thinks so."""
        return self.closing in template

    def began(self, prompt: str) -> bool:
        """Returns whether a prompt ends within the thinking: its template has opened it."""
        return prompt.rstrip().endswith(self.opening)

    def read(self, reader: OutputReader, prompt: str) -> Steps[None]:
        """Yields what was thought, and leaves the rest unread."""
        yield from reader.hold_space()
        if not (yield from reader.skip(self.opening)) and not self.began(prompt):
            return
        reader.drop_space()
        yield from reader.space()
        if self.title:
            yield from reader.skip(self.title)
            yield from reader.space()
        yield from told(_trimmed(reader.until(Markers(self.closing))), Reasoning)
        yield from reader.space()

    def before(self, grammar: str, prompt: str, token_id: TokenId) -> str:
        """Returns the grammar of an answer with thinking in front of it, which is free.

        It has to come if the prompt has begun it, and may come otherwise.
        """
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
    """Yields text without the white space at its end."""
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
