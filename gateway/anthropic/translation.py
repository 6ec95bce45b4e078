"""Translates bodies of Anthropic's Messages API into chats, which the rest of the gateway understands."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import msgspec
from msgspec import structs

from gateway.anthropic.schemas import (
    AnthropicMessage,
    AnthropicTool,
    Block,
    ChooseAny,
    ChooseNone,
    ChooseTool,
    CountTokensRequest,
    MessagesRequest,
    PlainBlock,
    TextBlock,
    ThinkingBlock,
    ThinkingDisabled,
    ToolResultBlock,
    ToolUseBlock,
)
from gateway.errors import conflict
from gateway.openai.bodies.formats import JSONSchemaFormat, NamedSchema
from gateway.openai.bodies.messages import Message, TextPart
from gateway.openai.bodies.schemas import ChatRequest
from gateway.openai.bodies.tools import (
    CalledFunction,
    ChatTool,
    Function,
    FunctionName,
    NamedTool,
    ToolCall,
    ToolChoice,
)
from gateway.openai.bodies.turns import joined

ANTHROPIC_FIELD_NAMES = {
    "max_completion_tokens": "max_tokens",
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "chat_template_kwargs": "thinking",
    "reasoning_effort": "output_config.effort",
    "continue_final_message": "messages",
}
"""This API's name for each field of a chat, so that errors name the field that the client has sent."""


def chat_of(body: CountTokensRequest) -> ChatRequest:
    """Returns the chat that a body describes. Raises `APIError` for what a chat cannot express."""
    chat = _prompt_of(body)
    if not isinstance(body, MessagesRequest):
        return chat
    user = body.metadata.get("user_id") if body.metadata else None
    return structs.replace(
        chat,
        stream=body.stream,
        max_completion_tokens=body.max_tokens,
        stop=body.stop_sequences,
        temperature=body.temperature,
        top_p=body.top_p or None,  # 0 means the likeliest token: `top_k` 1
        top_k=1 if body.top_p == 0 else body.top_k,
        user=user[:512] if isinstance(user, str) else None,
    )


def _prompt_of(body: CountTokensRequest) -> ChatRequest:
    """Returns the chat's fields that make up its prompt."""
    said = [message for given in body.messages for message in _messages(given)]
    system = [Message(role="system", content=_parts(body.system))] if body.system else []
    choice = body.tool_choice
    effort = body.output_config.effort if body.output_config is not None else None
    thinks = None if body.thinking is None else not isinstance(body.thinking, ThinkingDisabled)
    return ChatRequest(
        model=body.model,
        messages=[*system, *_turns(said)],
        tools=[_tool(tool) for tool in body.tools] if body.tools else None,
        tool_choice=_choice(body) if body.tools else None,
        parallel_tool_calls=False if choice is not None and choice.disable_parallel_tool_use else None,
        response_format=_format(body),
        reasoning_effort="xhigh" if effort == "max" else effort,
        chat_template_kwargs=None if thinks is None else {"enable_thinking": thinks},
        continue_final_message=True if said and said[-1].role == "assistant" else None,
    )


def _messages(given: AnthropicMessage) -> Iterator[Message]:
    """Yields the chat messages of one message: each tool result is a message of its own."""
    if isinstance(given.content, str):
        yield Message(role=given.role, content=given.content)
        return
    if given.role == "assistant":
        yield _assistant(given.content)
        return
    texts: list[TextBlock] = []
    for block in given.content:
        if isinstance(block, TextBlock):
            texts.append(block)
        elif isinstance(block, ToolResultBlock):
            if texts:
                yield Message(role=given.role, content=_parts(texts))
                texts = []
            yield _result(block)
        else:
            raise conflict(f"messages: a block of the type {_type(block)!r} is the assistant's", "messages")
    if texts or not given.content:
        yield Message(role=given.role, content=_parts(texts))


def _assistant(blocks: list[Block]) -> Message:
    if any(isinstance(block, ToolResultBlock) for block in blocks):
        raise conflict("messages: a block of the type 'tool_result' is the user's", "messages")
    texts = [block for block in blocks if isinstance(block, TextBlock)]
    thoughts = [block.thinking for block in blocks if isinstance(block, ThinkingBlock)]
    calls = [
        ToolCall(id=block.id, function=CalledFunction(block.name, block.input))
        for block in blocks
        if isinstance(block, ToolUseBlock)
    ]
    return Message(
        role="assistant",
        content=_parts(texts) if texts else None,
        tool_calls=calls or None,
        reasoning_content="\n".join(thoughts) if any(thoughts) else None,
    )


def _result(block: ToolResultBlock) -> Message:
    """Returns a tool's result as a message. A failed call without text gets the text "error"."""
    content = _parts(block.content or "")
    if not content and block.is_error:
        content = "error"
    return Message(role="tool", content=content, tool_call_id=block.tool_use_id)


def _turns(messages: Iterable[Message]) -> Iterator[Message]:
    """Joins successive messages of the user, and of the assistant, into one turn, as Anthropic does."""
    for role, neighbours in groupby(messages, key=lambda message: message.role):
        if role in ("user", "assistant"):
            yield joined(list(neighbours))
        else:
            yield from neighbours


def _parts(content: str | Sequence[TextBlock | PlainBlock]) -> str | list[TextPart]:
    """Returns a string unchanged, and a single block as its text."""
    if isinstance(content, str):
        return content
    if len(content) < 2:
        return content[0].text if content else ""
    return [TextPart(type="text", text=block.text) for block in content]


def _tool(tool: AnthropicTool) -> ChatTool:
    function = Function(name=tool.name, description=tool.description, parameters=tool.input_schema, strict=tool.strict)
    return ChatTool(function=function)


def _choice(body: CountTokensRequest) -> ToolChoice | None:
    match body.tool_choice:
        case ChooseAny():
            return "required"
        case ChooseNone():
            return "none"
        case ChooseTool(name=name):
            return NamedTool(function=FunctionName(name))
    return None


def _format(body: CountTokensRequest) -> JSONSchemaFormat | None:
    wanted, older = body.output_config.format if body.output_config is not None else None, body.output_format
    if wanted is not None and older is not None and msgspec.json.encode(wanted) != msgspec.json.encode(older):
        raise conflict("output_format: output_config.format asks for another form; give one of them", "output_format")
    wanted = wanted or older
    return None if wanted is None else JSONSchemaFormat(json_schema=NamedSchema(name="answer", schema=wanted.schema))


def _type(block: Block) -> str:
    return str(block.__struct_config__.tag)
