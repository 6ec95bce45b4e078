"""Lists requests that suit the demo model, for the first look at an empty page."""

from typing import NamedTuple


class ExamplePrompt(NamedTuple):
    """A chat request."""

    text: str
    max_tokens: int


FIRST_QUESTION = "Tell me a story about a fox and a lantern."

TWENTY_PROMPTS = (
    ExamplePrompt(FIRST_QUESTION, 160),
    ExamplePrompt("Hello!", 24),
    ExamplePrompt("What is 7 + 5?", 16),
    ExamplePrompt("What is TTFT?", 64),
    ExamplePrompt("Tell me a story about a robot and a garden.", 160),
    ExamplePrompt("Tell me a fact about owls.", 48),
    ExamplePrompt("What is goodput?", 64),
    ExamplePrompt("What is 9 - 4?", 16),
    ExamplePrompt("Tell me a story about a turtle and a kite.", 120),
    ExamplePrompt("What is a KV block?", 64),
    ExamplePrompt("Tell me a fact about whales.", 48),
    ExamplePrompt("Who are you?", 48),
    ExamplePrompt("What is 11 + 8?", 16),
    ExamplePrompt("Tell me a long story about a mouse, a boat and a map.", 200),
    ExamplePrompt("What is TPOT?", 64),
    ExamplePrompt("What does a prefill worker do?", 80),
    ExamplePrompt("Tell me a fact about bees.", 48),
    ExamplePrompt("What is the capital of Peru?", 48),
    ExamplePrompt("Tell me a story about a bear and a bell.", 120),
    ExamplePrompt("Good night!", 24),
)
