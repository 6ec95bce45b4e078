"""Lists requests that suit the demo model, for the first look at an empty page."""

from typing import NamedTuple


class Prompt(NamedTuple):
    """Holds one chat request."""

    text: str
    max_tokens: int


FIRST = "Tell me a story about a fox and a lantern."

TWENTY = (
    Prompt(FIRST, 160),
    Prompt("Hello!", 24),
    Prompt("What is 7 + 5?", 16),
    Prompt("What is TTFT?", 64),
    Prompt("Tell me a story about a robot and a garden.", 160),
    Prompt("Tell me a fact about owls.", 48),
    Prompt("What is goodput?", 64),
    Prompt("What is 9 - 4?", 16),
    Prompt("Tell me a story about a turtle and a kite.", 120),
    Prompt("What is a KV block?", 64),
    Prompt("Tell me a fact about whales.", 48),
    Prompt("Who are you?", 48),
    Prompt("What is 11 + 8?", 16),
    Prompt("Tell me a long story about a mouse, a boat and a map.", 200),
    Prompt("What is TPOT?", 64),
    Prompt("What does a prefill worker do?", 80),
    Prompt("Tell me a fact about bees.", 48),
    Prompt("What is the capital of Peru?", 48),
    Prompt("Tell me a story about a bear and a bell.", 120),
    Prompt("Good night!", 24),
)
