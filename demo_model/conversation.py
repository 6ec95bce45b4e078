"""Defines what the model learns from: conversations, each a row of exchanges, some with tools to call."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool; `arguments` maps names to types, in the order of a call."""

    name: str
    description: str
    arguments: Mapping[str, str]

    def definition(self) -> dict[str, Any]:
        """Returns the tool in OpenAI's format, for clients and chat templates."""
        properties = {name: {"type": kind} for name, kind in self.arguments.items()}
        parameters = {"type": "object", "properties": properties, "required": list(properties)}
        described = {"description": self.description} if self.description else {}
        return {"type": "function", "function": {"name": self.name, **described, "parameters": parameters}}

    def shown(self) -> str:
        """Returns the line of JSON in the prompt: a call with types in place of values."""
        described = {"description": self.description} if self.description else {}
        return json.dumps({**described, "name": self.name, "arguments": dict(self.arguments)}, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool, and its result."""

    name: str
    arguments: Mapping[str, str | int]
    result: str

    def said(self) -> str:
        """Returns the call as the model writes it."""
        call = json.dumps({"name": self.name, "arguments": dict(self.arguments)}, ensure_ascii=False)
        return f"<tool_call>\n{call}\n</tool_call>"

    def answered(self) -> str:
        """Returns the result as the model reads it."""
        return f"<tool_response>\n{self.result}\n</tool_response>"


@dataclass(frozen=True, slots=True)
class Exchange:
    """One question and its answer, and the calls between them.

    `subject` has the words that the answer must contain, for the evaluation and for turns that refer back.
    """

    ask: str
    answer: str
    subject: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()

    def calling(self) -> str:
        """Returns the turn of the model that calls."""
        return "\n".join(call.said() for call in self.calls)

    def results(self) -> str:
        """Returns the turn after it that holds the results."""
        return "\n".join(call.answered() for call in self.calls)


Turns = tuple[Exchange, ...]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Exchanges in order, and the tools that all may use."""

    turns: Turns
    tools: tuple[Tool, ...] = ()

    def toolbox(self) -> str:
        """Returns how a system turn lists the tools; empty: there are none."""
        return "\n".join(["<tools>", *(tool.shown() for tool in self.tools), "</tools>"]) if self.tools else ""

    def definitions(self) -> list[dict[str, Any]] | None:
        """Returns the tools as chat templates take them."""
        return [tool.definition() for tool in self.tools] or None


def messages(turns: Turns) -> list[dict[str, Any]]:
    """Returns exchanges as the messages of a chat request."""
    found: list[dict[str, Any]] = []
    for exchange in turns:
        found.append({"role": "user", "content": exchange.ask})
        if exchange.calls:
            calls = [
                {
                    "id": f"call_{number}",
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for number, call in enumerate(exchange.calls)
            ]
            found.append({"role": "assistant", "content": None, "tool_calls": calls})
            for number, call in enumerate(exchange.calls):
                found.append({"role": "tool", "tool_call_id": f"call_{number}", "content": call.result})
        found.append({"role": "assistant", "content": exchange.answer})
    return found
