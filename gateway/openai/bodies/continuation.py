"""Decides where the prompt of a chat ends: with the beginning of an answer, after the last message, or inside it."""

from typing import NamedTuple

from gateway.errors import conflict
from gateway.openai.bodies.schemas import ChatRequest


class PromptEnd(NamedTuple):
    """How a prompt ends; see `Chat`."""

    answer: bool
    continues: bool


def prompt_end(body: ChatRequest) -> PromptEnd:
    """Returns how the prompt ends. Raises `APIError` for a message that cannot be continued."""
    if not body.continue_final_message:
        if body.echo:
            raise conflict("echo: there is no message that the answer continues (continue_final_message)", "echo")
        return PromptEnd(body.add_generation_prompt is not False, continues=False)
    if body.add_generation_prompt:
        message = "add_generation_prompt: an answer that continues a message does not begin a new one"
        raise conflict(message, "add_generation_prompt")
    last = body.messages[-1]
    if last.role != "assistant" or last.calls() or not last.text():
        message = "continue_final_message: the last message is not the assistant's text"
        raise conflict(message, "continue_final_message")
    return PromptEnd(answer=False, continues=True)


def echoed_beginning(body: ChatRequest) -> str:
    """Returns the beginning of the message that the answer continues, if the answer is to repeat it."""
    return (body.messages[-1].text() or "") if body.echo and body.continue_final_message else ""
