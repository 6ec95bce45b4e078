"""Collects the options of a chat template beside messages and tools, mostly about thinking."""

from typing import Any

from gateway.errors import conflict, invalid
from gateway.openai.bodies.schemas import TEMPLATE_OPTIONS, ChatRequest


def template_options(body: ChatRequest) -> dict[str, Any]:
    """Returns the options of a chat's template. Raises `APIError` for names that are not in `TEMPLATE_OPTIONS`."""
    given = body.chat_template_kwargs or {}
    unknown = next((name for name in given if name not in TEMPLATE_OPTIONS), None)
    if unknown is not None:
        name = f"chat_template_kwargs.{unknown[:64]}"
        raise invalid(
            f"{name} is not supported; these are: {', '.join(sorted(TEMPLATE_OPTIONS))}", name, "unsupported_parameter"
        )
    if body.enable_thinking is not None:
        if given.get("enable_thinking", body.enable_thinking) != body.enable_thinking:
            message = "enable_thinking: chat_template_kwargs.enable_thinking is another; give one of them"
            raise conflict(message, "enable_thinking")
        given = {"thinking": body.enable_thinking, **given, "enable_thinking": body.enable_thinking}
    if body.reasoning_effort is None:
        return dict(given)
    if given.get("reasoning_effort", body.reasoning_effort) != body.reasoning_effort:
        message = "reasoning_effort: chat_template_kwargs.reasoning_effort is another; give one of them"
        raise conflict(message, "reasoning_effort")
    effort: dict[str, Any] = {"reasoning_effort": body.reasoning_effort}
    if body.reasoning_effort == "none":
        effort |= {"enable_thinking": False, "thinking": False}
    return effort | given
