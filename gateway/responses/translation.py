"""Translates bodies of the Responses API into chats, which the rest of the gateway understands."""

from collections.abc import Iterable, Iterator, Sequence

from gateway.errors import invalid
from gateway.openai.bodies.formats import JSONObjectFormat, JSONSchemaFormat, NamedSchema, ResponseFormat
from gateway.openai.bodies.messages import MAX_MESSAGES, Message, TextPart
from gateway.openai.bodies.schemas import ChatRequest
from gateway.openai.bodies.tools import (
    AllowedChoice,
    AllowedTools,
    CalledCustom,
    CalledFunction,
    ChatTool,
    CustomDescription,
    CustomTool,
    Function,
    FunctionName,
    NamedCustom,
    NamedTool,
    RuledText,
    ToolCall,
    ToolChoice,
)
from gateway.openai.bodies.turns import joined
from gateway.responses.items import (
    ContentPart,
    CustomCallItem,
    CustomOutputItem,
    FunctionCallItem,
    FunctionOutputItem,
    Item,
    MessageItem,
    ReasoningItem,
    RefusalText,
)
from gateway.responses.schemas import (
    AllowedFunctions,
    AnyObject,
    BySchema,
    ChosenCustom,
    ChosenFunction,
    CustomClientTool,
    FunctionTool,
    ResponsesRequest,
    RuledInput,
)

RESPONSES_FIELD_NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
}
"""This API's name for each field of a chat, so that errors name the field that the client has sent."""


def items_of(body: ResponsesRequest) -> list[Item]:
    return [MessageItem(role="user", content=body.input)] if isinstance(body.input, str) else body.input


def chat_of(body: ResponsesRequest, conversation: Sequence[Item]) -> ChatRequest:
    """Returns the chat that a body describes. `conversation` has all items so far, the body's own input last.

    Raises `APIError` for what a chat cannot express.
    """
    if len(conversation) > MAX_MESSAGES:
        raise invalid(f"input: {len(conversation)} items are more than {MAX_MESSAGES}", "input")
    instructions = [Message(role="system", content=body.instructions)] if body.instructions else []
    messages = [*instructions, *_messages(conversation)]
    if not messages:
        raise invalid("input has no items", "input", "empty_prompt")
    return ChatRequest(
        model=body.model,
        messages=messages,
        stream=body.stream,
        max_completion_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        tools=[_tool(tool) for tool in body.tools] if body.tools else None,
        tool_choice=_choice(body) if body.tools else None,
        parallel_tool_calls=body.parallel_tool_calls if body.tools else None,
        response_format=_format(body),
        reasoning_effort=body.reasoning.effort if body.reasoning is not None else None,
        logprobs=True if body.wants_logprobs else None,
        top_logprobs=body.top_logprobs if body.wants_logprobs else None,
        user=body.user,
    )


def _messages(items: Iterable[Item]) -> Iterator[Message]:
    """Yields messages. Everything that the model did in one turn (thoughts, text, calls) is one message."""
    turn: list[Message] = []
    called = False  # whether the turn has calls: text after them begins a new turn
    for said in map(_message_of, items):
        if turn and (said.role != "assistant" or (called and said.content is not None)):
            yield joined(turn)
            turn, called = [], False
        if said.role == "assistant":
            turn.append(said)
            called = called or bool(said.tool_calls)
        else:
            yield said
    if turn:
        yield joined(turn)


def _message_of(item: Item) -> Message:
    match item:
        case MessageItem(role=role, content=content):
            return Message(role=role, content=content if isinstance(content, str) else _parts(content))
        case FunctionCallItem(call_id=id, name=name, arguments=arguments):
            call = ToolCall(id=id, function=CalledFunction(name, arguments))
            return Message(role="assistant", tool_calls=[call])
        case CustomCallItem(call_id=id, name=name, input=text):
            called = ToolCall(id=id, custom=CalledCustom(name=name, input=text), type="custom")
            return Message(role="assistant", tool_calls=[called])
        case FunctionOutputItem(call_id=id, output=output) | CustomOutputItem(call_id=id, output=output):
            content = output if isinstance(output, str) else "\n".join(part.text for part in output)
            return Message(role="tool", content=content, tool_call_id=id)
        case ReasoningItem():
            thoughts = [part.text for part in item.content or item.summary]
            return Message(role="assistant", reasoning_content="\n".join(thoughts) or None)


def _parts(parts: list[ContentPart]) -> list[TextPart]:
    return [
        TextPart(type="refusal", refusal=part.refusal)
        if isinstance(part, RefusalText)
        else TextPart(type="text", text=part.text)
        for part in parts
    ]


def _tool(tool: FunctionTool | CustomClientTool) -> ChatTool | CustomTool:
    if isinstance(tool, CustomClientTool):
        rule = tool.format
        form = RuledText(grammar=rule) if isinstance(rule, RuledInput) else rule
        return CustomTool(custom=CustomDescription(name=tool.name, description=tool.description, format=form))
    function = Function(name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict)
    return ChatTool(function=function)


def _choice(body: ResponsesRequest) -> ToolChoice | None:
    if isinstance(body.tool_choice, ChosenFunction | ChosenCustom):
        return _named(body.tool_choice)
    if isinstance(body.tool_choice, AllowedFunctions):
        named = [_named(one) for one in body.tool_choice.tools]
        return AllowedChoice(allowed_tools=AllowedTools(mode=body.tool_choice.mode, tools=named))
    return body.tool_choice


def _named(chosen: ChosenFunction | ChosenCustom) -> NamedTool | NamedCustom:
    name = FunctionName(chosen.name)
    return NamedCustom(custom=name) if isinstance(chosen, ChosenCustom) else NamedTool(function=name)


def _format(body: ResponsesRequest) -> ResponseFormat | None:
    wanted = body.text.format if body.text is not None else None
    match wanted:
        case AnyObject():
            return JSONObjectFormat()
        case BySchema(name=name, schema=schema, description=description, strict=strict):
            return JSONSchemaFormat(
                json_schema=NamedSchema(name=name, schema=schema, description=description, strict=strict)
            )
    return None
