"""Renders messages to a prompt with a model's chat template, as transformers' `apply_chat_template` does.

A template is code that came with the weights. So it runs in jinja2's immutable sandbox, and sees nothing but plain
data.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from msgspec import structs

from contracts.errors import ModelError
from gateway.errors import invalid
from gateway.text.call_style import call_style
from gateway.text.chat import Chat
from gateway.text.shown_tools import ShownTools, shown_tools

TEMPLATE_FAILURES = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError)
"""Further exceptions of templates that meet unexpected data."""
CONTINUATION_TAG = "<BATON CONTINUES THIS MESSAGE> "
"""Marks the end of a message that is to be continued. Its space shows whether the template trims contents."""
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
"""Names of a message's reasoning, the usual name first; gpt-oss uses the second."""


class ChatTemplate:
    """A compiled template with its special tokens. Raises `ModelError` if it does not compile.

    Some models have another template for chats with tools, `with_tools`.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], with_tools: str | None = None) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals |= {
            "raise_exception": _refuse,
            "strftime_now": _now,
            "dict": _Dict(),
            "namespace": _Namespace,
        }
        try:
            self._template = environment.from_string(source)
            self._with_tools = self._template if with_tools is None else environment.from_string(with_tools)
        except jinja2.TemplateError as error:
            raise ModelError(f"the model's chat template is broken: {error}") from None
        self._source = with_tools or source
        self._special_tokens = dict(special_tokens)
        self._calls = call_style(self._rendered)

    def render(self, chat: Chat) -> str:
        """Returns the prompt. Raises `APIError` if the template refuses the chat."""
        messages = [_with_thoughts(self._calls.written(message)) for message in chat.messages]
        if not chat.continues:
            return self._rendered(structs.replace(chat, messages=messages))
        messages[-1] = {**messages[-1], "content": messages[-1]["content"] + CONTINUATION_TAG}
        return _until_tag(self._rendered(structs.replace(chat, messages=messages, answer=False)))

    def shown_tools(self) -> ShownTools:
        """Returns what the template shows of tools and calls; takes a few milliseconds."""
        if self._calls.in_content:
            return shown_tools(self._source, self._rendered)
        return shown_tools(self._source, self.render)

    def _rendered(self, chat: Chat) -> str:
        template = self._with_tools if chat.tools else self._template
        try:
            return template.render(
                **{**chat.options, **self._special_tokens},
                messages=chat.messages,
                tools=chat.tools,
                documents=None,
                add_generation_prompt=chat.answer,
            )
        except (jinja2.TemplateError, *TEMPLATE_FAILURES) as error:
            said = str(error) if isinstance(error, jinja2.TemplateError) else type(error).__name__
            raise invalid(f"the model's chat template refuses these messages: {said}", "messages") from None


def _until_tag(rendered: str) -> str:
    """Returns a rendered chat up to the end of its last message's content, as transformers does.

    Raises `APIError` if the template does not show that content.
    """
    before, tag, behind = rendered.rpartition(CONTINUATION_TAG.strip())
    if not tag:
        raise invalid("the model's chat template leaves out the message that is to be continued", "messages")
    return before if behind.startswith(" ") else before.rstrip()  # a template that trims contents has trimmed ours


def _with_thoughts(message: dict[str, Any]) -> dict[str, Any]:
    thought = next((message[name] for name in REASONING_FIELDS if message.get(name) is not None), None)
    return message if thought is None else {"thinking": thought, **message, "reasoning_content": thought}


class _Generation(Extension):
    """Accepts `{% generation %}`, which marks an assistant's text for training and has no effect here."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_enclosed"), [], [], body).set_lineno(line)

    def _enclosed(self, caller: Macro) -> str:
        return caller()


class _Dict:
    """`dict` for templates, without the type's own attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """`namespace` for templates, which may not store names with a leading underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args  # positional only, so that a template may use the name `self`
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _public(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _public(name)
        super().__setitem__(name, value)


def _public(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError("a template may not store names that begin with an underscore")


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Returns JSON without jinja2's HTML escaping, since a prompt is no page. Iterators become lists."""
    form = {"indent": indent, "separators": separators, "sort_keys": sort_keys, "default": list}
    return json.dumps(value, ensure_ascii=ensure_ascii, **form)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)
