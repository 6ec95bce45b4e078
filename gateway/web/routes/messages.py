"""Anthropic's Messages API."""

import time

from starlette.requests import Request
from starlette.responses import Response

from gateway.anthropic.bodies import parse_count, parse_messages
from gateway.anthropic.events import Event, MessageAnswer, TokenCount
from gateway.anthropic.schemas import CountTokensRequest, MessagesRequest
from gateway.anthropic.shaper import MessageShaper
from gateway.anthropic.translation import ANTHROPIC_FIELD_NAMES, chat_of
from gateway.errors import named
from gateway.openai.bodies.schemas import ChatRequest
from gateway.openai.bodies.unknown_fields import UnknownFields
from gateway.openai.tokens import MAX_TOKENS_PER_REQUEST
from gateway.requests.request import Request as Open
from gateway.web.endpoint import Endpoint
from gateway.web.serving import Serving, caller, reply


def endpoints(serving: Serving) -> list[Endpoint]:
    gateway = serving.gateway

    async def messages(request: Request) -> Response:
        received = time.monotonic()
        body, chat = await serving.read(request, _message)
        with named(ANTHROPIC_FIELD_NAMES):
            admitted = await gateway.front().chat(chat, caller(request), cuts=True)

        def shape(requests: list[Open]) -> MessageShaper:
            return MessageShaper(body.model or gateway.model, body, requests[0])

        return await serving.answer(request, admitted, received, bool(body.stream), shape)

    async def count(request: Request) -> Response:
        chat, front = await serving.read(request, _counted), gateway.front()
        await serving.admit(request)
        with named(ANTHROPIC_FIELD_NAMES), front.room(chat, 1):
            ids = await front.chat_tokens(
                chat, max(MAX_TOKENS_PER_REQUEST, front.window.tokens()), caller(request).party
            )
        return reply(TokenCount(len(ids)))

    path, counts = "/v1/messages", "Counts the tokens of a message's prompt."
    return [
        Endpoint("POST", path, messages, "Answers a message.", MessagesRequest, MessageAnswer, Event),
        Endpoint("POST", f"{path}/count_tokens", count, counts, CountTokensRequest, TokenCount),
    ]


def _message(written: bytes, unknown: UnknownFields) -> tuple[MessagesRequest, ChatRequest]:
    """Returns a body and its chat; for a large body this runs on a thread."""
    body = parse_messages(written, unknown)
    with named(ANTHROPIC_FIELD_NAMES):
        return body, chat_of(body)


def _counted(written: bytes, unknown: UnknownFields) -> ChatRequest:
    with named(ANTHROPIC_FIELD_NAMES):
        return chat_of(parse_count(written, unknown))
