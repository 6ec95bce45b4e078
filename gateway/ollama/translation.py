"""Translates bodies of Ollama's API into chats and completions, which the rest of the gateway understands."""

from typing import Any

from gateway.ollama.schemas import OllamaChatRequest, OllamaGenerateRequest, OllamaMessage, OllamaRequest, Options
from gateway.openai.bodies.formats import JSONObjectFormat, JSONSchemaFormat, NamedSchema, ResponseFormat
from gateway.openai.bodies.messages import Message
from gateway.openai.bodies.schemas import ChatRequest, CompletionRequest
from gateway.openai.bodies.tools import CalledFunction, ChatTool, ToolCall

LATEST_TAG = ":latest"  # Ollama's clients add it to names without a tag
OLLAMA_FIELD_NAMES = {
    "max_tokens": "options.num_predict",
    "temperature": "options.temperature",
    "repetition_penalty": "options.repeat_penalty",
    "stop": "options.stop",
    "response_format": "format",
    "enable_thinking": "think",
    "reasoning_effort": "think",
}
"""This API's name for each field of a chat, so that errors name the field that the client has sent."""


def model_of(name: str) -> str:
    """Returns a model's name without the tag that Ollama's clients add."""
    return name.removesuffix(LATEST_TAG)


def chat_of(body: OllamaChatRequest) -> ChatRequest:
    """Returns the chat that a body describes. An assistant's message at the end is continued, as Ollama does."""
    last = body.messages[-1]
    goes_on = last.role == "assistant" and bool(last.content) and not last.tool_calls
    return ChatRequest(
        messages=[_message(message) for message in body.messages],
        tools=[ChatTool(function=tool.function) for tool in body.tools] if body.tools else None,
        continue_final_message=goes_on or None,
        **_thinking(body),
        **_sampling(body),
    )


def prompt_of(body: OllamaGenerateRequest) -> ChatRequest:
    """Returns the chat of a single prompt."""
    told = [Message(role="system", content=body.system)] if body.system else []
    asked = Message(role="user", content=body.prompt)
    return ChatRequest(messages=[*told, asked], **_thinking(body), **_sampling(body))


def text_of(body: OllamaGenerateRequest) -> CompletionRequest:
    """Returns the completion of a prompt that is a text already."""
    return CompletionRequest(prompt=body.prompt, suffix=body.suffix, **_sampling(body))


def _message(said: OllamaMessage) -> Message:
    calls = [
        ToolCall(id=call.id, function=CalledFunction(call.function.name, call.function.arguments))
        for call in said.tool_calls or ()
    ]
    return Message(
        role=said.role,
        content=said.content or (None if calls else ""),
        name=said.tool_name,
        tool_calls=calls or None,
        tool_call_id=said.tool_call_id,
        reasoning_content=said.thinking or None,
    )


def _thinking(body: OllamaRequest) -> dict[str, Any]:
    if isinstance(body.think, str):
        return {"enable_thinking": True, "reasoning_effort": body.think}
    return {"enable_thinking": body.think}


def _sampling(body: OllamaRequest) -> dict[str, Any]:
    given = body.options or Options()
    limit = given.num_predict
    return {
        "model": model_of(body.model),
        "stream": body.stream is not False,
        "max_tokens": None if limit is not None and limit < 0 else limit,
        "temperature": given.temperature,
        "top_p": given.top_p or None,  # 0 means the likeliest token: `top_k` 1
        "top_k": 1 if given.top_p == 0 else given.top_k,
        "min_p": given.min_p,
        "repetition_penalty": given.repeat_penalty,
        "presence_penalty": given.presence_penalty,
        "frequency_penalty": given.frequency_penalty,
        "seed": given.seed,
        "stop": given.stop,
        "response_format": _format(body),
    }


def _format(body: OllamaRequest) -> ResponseFormat | None:
    match body.format:
        case "json":
            return JSONObjectFormat()
        case bool() | dict() as schema:
            return JSONSchemaFormat(json_schema=NamedSchema(name="answer", schema=schema))
    return None
