"""Conversations recorded in ShareGPT's form: a JSON array of `{"conversations": [{"from": "human", "value": …}, …]}`.

A request has all messages up to a person's turn, as they were recorded, and asks for an answer as long as the recorded
one. Lengths in tokens are estimated from characters, as only the server has its tokenizer.
"""

import random
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from zlib import crc32

import msgspec
from msgspec import Struct, field

from contracts.errors import ConfigError
from workloads.conversations import in_turn
from workloads.lengths import Lengths
from workloads.request import PlannedRequest, Span

OPTION = "--sharegpt"
TOKEN_CHARACTERS = 4.0
"""Mean characters of a token of English text."""
PERSON_NAMES, MODEL_NAMES = ("human", "user"), ("gpt", "assistant", "chatgpt", "bing", "bard")


class RecordedMessage(Struct, frozen=True):
    """A message of the file."""

    speaker: str = field(name="from")
    value: str


class RecordedConversation(Struct, frozen=True):
    """An entry of the file."""

    conversations: tuple[RecordedMessage, ...] = ()


def read_conversations(path: Path) -> list[tuple[str, ...]]:
    """Returns the texts of each conversation, a person's and the model's in turn. Raises `ConfigError`.

    Conversations that do not begin with a person's message and an answer are left out; others end before the first
    message that is out of turn.
    """
    try:
        read = msgspec.json.decode(path.read_bytes(), type=list[RecordedConversation])
    except OSError as error:
        raise ConfigError(OPTION, path, error.strerror or "cannot be read") from None
    except msgspec.DecodeError as error:
        raise ConfigError(OPTION, path, f"is no array of ShareGPT's conversations: {error}") from None
    found = [texts for entry in read if len(texts := _in_turn(entry)) >= 2]
    if not found:
        raise ConfigError(OPTION, path, "has no conversation that begins with a person's message and an answer")
    return found


def _in_turn(entry: RecordedConversation) -> tuple[str, ...]:
    texts: list[str] = []
    for message in entry.conversations:
        speakers = MODEL_NAMES if len(texts) % 2 else PERSON_NAMES
        if message.speaker not in speakers or not message.value.strip():
            break
        texts.append(message.value)
    return tuple(texts[: len(texts) // 2 * 2])


class RecordedChats(Struct, frozen=True):
    """Recorded conversations in random order. `output`: lengths of answers; None: the recorded lengths."""

    conversations: list[tuple[str, ...]]
    pause_s: float
    output: Lengths | None = None

    def requests(self, chance: random.Random) -> Iterator[PlannedRequest]:
        for _ in repeat(None):
            texts = chance.choice(self.conversations)
            turns = [self._request(texts, answer, chance) for answer in range(1, len(texts), 2)]
            yield in_turn(turns, self.pause_s, chance)

    def _request(self, texts: tuple[str, ...], answer: int, chance: random.Random) -> PlannedRequest:
        before = texts[:answer]
        output = self.output.draw(chance) if self.output is not None else estimated_tokens(texts[answer])
        return PlannedRequest(
            output, before, tuple(Span(crc32(text.encode()), estimated_tokens(text)) for text in before)
        )


def estimated_tokens(text: str) -> int:
    return max(1, round(len(text) / TOKEN_CHARACTERS))
