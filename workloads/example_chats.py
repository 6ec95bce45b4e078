"""Lists requests that suit the demo model, for the first look at an empty page."""

from typing import NamedTuple


class ExampleChat(NamedTuple):
    """A chat request."""

    text: str
    max_tokens: int


FIRST_QUESTION = "Tell me a story about a fox and a lantern."

EXAMPLE_CHATS = (
    ExampleChat(FIRST_QUESTION, 160),
    ExampleChat("Hello!", 24),
    ExampleChat("What is 7 + 5?", 16),
    ExampleChat("What is TTFT?", 64),
    ExampleChat("Tell me a story about a robot and a garden.", 160),
    ExampleChat("Tell me a fact about owls.", 48),
    ExampleChat("What is goodput?", 64),
    ExampleChat("What is 9 - 4?", 16),
    ExampleChat("Tell me a story about a turtle and a kite.", 120),
    ExampleChat("What is a KV block?", 64),
    ExampleChat("Tell me a fact about whales.", 48),
    ExampleChat("Who are you?", 48),
    ExampleChat("What is 11 + 8?", 16),
    ExampleChat("Tell me a long story about a mouse, a boat and a map.", 200),
    ExampleChat("What is TPOT?", 64),
    ExampleChat("What does a prefill worker do?", 80),
    ExampleChat("Tell me a fact about bees.", 48),
    ExampleChat("What is the capital of Peru?", 48),
    ExampleChat("Tell me a story about a bear and a bell.", 120),
    ExampleChat("Good night!", 24),
)
