"""Prompts for the demo model: with answers that repeat the prompt, and with answers that do not.

The model cannot summarize, edit or write code. It repeats calls of tools (names and arguments stand in the prompt),
words that it is asked to say, and earlier answers of a conversation to the same question, or to a question with another
noun.
"""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from transformers import AutoTokenizer

from demo_model.conversation import Conversation, messages
from demo_model.lessons import echo, stories, tools
from demo_model.split import Split

Answer = Callable[[list[int]], list[int]]
OTHER_NOUN = "rabbit"


class Prompts:
    """Draws prompts; `answer` is the model's own greedy answer to some tokens."""

    def __init__(self, model: Path, answer: Answer, seed: int = 5) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(model)
        self._answer = answer
        self._draw = Random(seed)

    def of(self, kind: str) -> list[int]:
        draw = self._draw
        if kind == "words":
            return self._chat([_said("user", echo.echo(draw).ask)])
        if kind in ("call", "call again"):
            return self._call(kind == "call again")
        story = stories.story(draw, Split.HELD_OUT, stories.Reserve.KNOWN)
        first = self._chat([_said("user", story.ask)])
        if kind == "story":
            return first
        own = self._tokenizer.decode(self._answer(first), skip_special_tokens=True)
        ask = story.ask if kind == "told again" else story.ask.replace(story.subject[0], OTHER_NOUN)
        return self._chat([_said("user", story.ask), _said("assistant", own), _said("user", ask)])

    def _call(self, again: bool) -> list[int]:
        others = tools.toolbox(self._draw)
        talk: Conversation = tools.using(self._draw, Split.HELD_OUT, self._draw.choice(others), others)
        chat = messages(talk.turns)
        asked = chat[: 1 + max(place for place, message in enumerate(chat) if message["role"] == "user")]
        return self._chat([*chat, asked[-1]] if again else asked, talk.definitions())

    def _chat(self, chat: list[dict[str, Any]], definitions: list[dict[str, Any]] | None = None) -> list[int]:
        text = self._tokenizer.apply_chat_template(chat, tools=definitions, add_generation_prompt=True, tokenize=False)
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids


def _said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}
