"""Anthropic's Messages API."""

from starlette.requests import Request
from starlette.responses import Response

from gateway.anthropic.bodies import parse_count, parse_messages
from gateway.anthropic.events import Event, MessageAnswer, TokenCount
from gateway.anthropic.schemas import CountTokensRequest, MessagesRequest
from gateway.anthropic.shaper import MessageShaper
from gateway.anthropic.translation import ANTHROPIC_FIELD_NAMES, chat_of
from gateway.errors import renamed_fields
from gateway.openai.bodies.schemas import ChatRequest
from gateway.openai.bodies.unknown_fields import UnknownFields
from gateway.openai.tokens import counted_tokens
from gateway.requests.request import Request as OpenRequest
from gateway.web.endpoint import Endpoint
from gateway.web.serving import Serving, caller, reply


def endpoints(serving: Serving) -> list[Endpoint]:
    gateway = serving.gateway

    async def messages(request: Request) -> Response:
        body, chat = await serving.read(request, _message)
        with renamed_fields(ANTHROPIC_FIELD_NAMES):
            admitted = await gateway.ready_admission().chat(chat, caller(request), clamps_limit=True)

        def shape(requests: list[OpenRequest]) -> MessageShaper:
            return MessageShaper(body.model or gateway.model, body, requests[0])

        return await serving.answer(request, admitted, bool(body.stream), shape)

    async def count(request: Request) -> Response:
        chat, admission = await serving.read(request, _counted), gateway.ready_admission()
        await serving.admit(request)
        with renamed_fields(ANTHROPIC_FIELD_NAMES):
            ids = await counted_tokens(admission, chat, caller(request).tenant_share)
        return reply(TokenCount(len(ids)))

    path, counts = "/v1/messages", "Counts the tokens of a message's prompt."
    return [
        Endpoint("POST", path, messages, "Answers a message.", MessagesRequest, MessageAnswer, Event),
        Endpoint("POST", f"{path}/count_tokens", count, counts, CountTokensRequest, TokenCount),
    ]


def _message(written: bytes, unknown: UnknownFields) -> tuple[MessagesRequest, ChatRequest]:
    """Returns a body and its chat; for a large body this runs on a thread."""
    body = parse_messages(written, unknown)
    with renamed_fields(ANTHROPIC_FIELD_NAMES):
        return body, chat_of(body)


def _counted(written: bytes, unknown: UnknownFields) -> ChatRequest:
    with renamed_fields(ANTHROPIC_FIELD_NAMES):
        return chat_of(parse_count(written, unknown))
