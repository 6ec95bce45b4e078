"""Decides which tools an answer may call, from OpenAI's `tools` or the older `functions`."""

from contracts.kinds import ToolParser
from gateway.errors import APIError, conflict, invalid
from gateway.openai.bodies.schemas import ChatRequest
from gateway.openai.bodies.tools import (
    AllowedChoice,
    AllowedTools,
    CustomTool,
    Function,
    FunctionChoice,
    FunctionName,
    NamedCustom,
    NamedTool,
    ToolChoice,
)
from gateway.output.formats.known_formats import TOOL_FORMATS
from gateway.output.tools import Tool, ToolUse


def functions_of(body: ChatRequest) -> list[Function]:
    """Returns the functions of a chat. Raises `APIError` if both fields are given, or two names are equal."""
    if body.tools and body.functions:
        raise conflict("functions: tools defines the tools already; give one of both", "functions")
    functions = [tool.function for tool in body.tools or ()] or list(body.functions or ())
    names = [function.name for function in functions]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        where = "tools" if body.tools else "functions"
        raise conflict(f"{where}: two have the name {twice!r}", where)
    return functions


def custom_names_of(body: ChatRequest) -> frozenset[str]:
    return frozenset(tool.custom.name for tool in body.tools or () if isinstance(tool, CustomTool))


def tool_use_of(body: ChatRequest) -> ToolUse | None:
    """Returns the tools that the answer may or must call; None for no tools. Raises `APIError`."""
    functions = functions_of(body)
    legacy = body.functions is not None or body.function_call is not None
    if legacy and body.tool_choice is not None and _meaning(body.tool_choice) != _meaning(body.function_call):
        raise conflict("function_call: tool_choice differs from it; give one of them", "function_call")
    choice, param = (body.function_call, "function_call") if legacy else (body.tool_choice, "tool_choice")
    if choice == "none" or (not functions and choice in (None, "auto")):
        return None
    if not functions:
        raise conflict(f"{param}: there are no tools to choose from", param)
    tools = tuple(Tool(one.name, one.parameters, bool(one.strict), body.closes_objects()) for one in functions)
    parallel = body.parallel_tool_calls is not False and not legacy
    match choice:
        case None | "auto":
            return ToolUse(tools, must=False, parallel=parallel)
        case "required":
            return ToolUse(tools, must=True, parallel=parallel)
        case NamedTool(function=FunctionName(name)) | NamedCustom(custom=FunctionName(name)) | FunctionName(name):
            return ToolUse(_named(tools, [name], param), must=True, parallel=False)
        case AllowedChoice(allowed_tools=AllowedTools(mode=mode, tools=allowed)):
            chosen = _named(tools, [one.function.name for one in allowed], param)
            return ToolUse(chosen, must=mode == "required", parallel=parallel)
    raise AssertionError(f"no such choice: {choice}")


def _named(tools: tuple[Tool, ...], names: list[str], param: str) -> tuple[Tool, ...]:
    """Returns the tools with these names. Raises `APIError` for a name that no tool has."""
    unknown = next((name for name in names if all(tool.name != name for tool in tools)), None)
    if unknown is not None:
        raise conflict(f"{param}: there is no tool with the name {unknown!r}", param)
    return tuple(tool for tool in tools if tool.name in names)


def _meaning(choice: ToolChoice | FunctionChoice | None) -> str | None:
    match choice:
        case AllowedChoice():
            return "some of the tools"
        case NamedTool(function=FunctionName(name)) | NamedCustom(custom=FunctionName(name)) | FunctionName(name):
            return f"{name} by name"
    return choice


def no_tools(body: ChatRequest, model: str, parser: ToolParser, takes_tools: bool) -> APIError:
    """Returns the error for tools without a known call format. `parser` is the value of --tool-parser."""
    param = "tools" if body.tools else "functions"
    if parser == "none":
        return invalid(f"{param}: --tool-parser none: {model} is served without tools", param, "no_tool_parser")
    if not takes_tools:
        message = f"{param}: the chat template of {model} leaves tools out of the prompt"
        return invalid(message, param, "no_tool_template")
    names = ", ".join(family.name for family in TOOL_FORMATS)
    message = f"{param}: the chat template of {model} takes tools, and writes calls in none of the known formats"
    return invalid(f"{message}; --tool-parser says in which one they are: {names}", param, "no_tool_parser")
