"""Makes prompts fit: the last tokens of a prompt, or a conversation without its oldest turns."""

from collections.abc import Callable, Sequence

from gateway.openai.bodies.messages import Message
from gateway.text.tokenizer import TooManyTokens

INSTRUCTION_ROLES = ("system", "developer")


def last_tokens(prompt: list[int], left: int | None, room: int) -> list[int]:
    """Returns the last `left` tokens of a prompt: all for None, and as many as the `room` for -1."""
    if left is None:
        return prompt
    left = room if left < 0 else left
    return prompt[-left:] if left > 0 else []


def without_oldest(messages: Sequence[Message], tokens_of: Callable[[Sequence[Message]], list[int]]) -> list[int]:
    """Returns the tokens of the conversation without as few of its oldest turns as possible.

    Instructions stay, and the remaining conversation begins with a message of the user. `tokens_of` raises
    `TooManyTokens` for messages that are too long; a binary search calls it for a logarithm of the number of turns.
    Raises `TooManyTokens` if the last turn alone is too long.
    """
    try:
        return tokens_of(messages)
    except TooManyTokens:
        begins = [place for place, message in enumerate(messages) if message.role == "user"]
        if len(begins) < 2:
            raise

    def beginning(place: int) -> list[Message]:
        return [one for number, one in enumerate(messages) if number >= place or one.role in INSTRUCTION_ROLES]

    fewest, most = 1, len(begins) - 1  # the turns to leave out are between these
    found = tokens_of(beginning(begins[most]))
    while fewest < most:
        middle = (fewest + most) // 2
        try:
            found, most = tokens_of(beginning(begins[middle])), middle
        except TooManyTokens:
            fewest = middle + 1
    return found
