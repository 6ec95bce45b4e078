"""Defines what the model learns from: conversations, each a row of exchanges."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Exchange:
    """Holds one question and its answer.

    `subject` holds the words that the answer has to contain, for the evaluation and for turns that refer back.
    """

    ask: str
    answer: str
    subject: tuple[str, ...] = ()


Conversation = tuple[Exchange, ...]
