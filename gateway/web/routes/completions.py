"""OpenAI's chat completions and text completions."""

from starlette.requests import Request
from starlette.responses import Response

from gateway.openai.answers.answer_types import ChatChunk, ChatCompletion, Completion, CompletionStreamChunk
from gateway.openai.answers.chat_shaper import ChatShaper
from gateway.openai.answers.completion_shaper import CompletionShaper
from gateway.openai.bodies.parameters import ALIASES, CHAT_ALIASES, CHAT_PARAMETERS, COMPLETION_PARAMETERS
from gateway.openai.bodies.parsing import parse_chat, parse_completion
from gateway.openai.bodies.schemas import ChatRequest, CompletionRequest
from gateway.requests.request import Request as OpenRequest
from gateway.web.endpoint import Endpoint
from gateway.web.serving import Serving, caller


def endpoints(serving: Serving) -> list[Endpoint]:
    gateway = serving.gateway

    async def chat(request: Request) -> Response:
        body = await serving.read(request, parse_chat)
        admission = gateway.ready_admission()
        admitted = await admission.chat(body, caller(request))

        def shape(requests: list[OpenRequest]) -> ChatShaper:
            return ChatShaper(
                body.model or gateway.model, body, requests, admission.tokenizer.bytes_of, admission.thought_end
            )

        return await serving.answer(request, admitted, bool(body.stream), shape)

    async def completion(request: Request) -> Response:
        body = await serving.read(request, parse_completion, ids=True)
        admission = gateway.ready_admission()
        admitted = await admission.completion(body, caller(request))

        def shape(requests: list[OpenRequest]) -> CompletionShaper:
            return CompletionShaper(body.model or gateway.model, body, requests, admission.tokenizer)

        return await serving.answer(request, admitted, bool(body.stream), shape)

    return [
        Endpoint(
            "POST",
            "/v1/chat/completions",
            chat,
            "Answers a chat.",
            body=ChatRequest,
            neutral=CHAT_PARAMETERS,
            aliases=CHAT_ALIASES,
            answer=ChatCompletion,
            event=ChatChunk,
            last="[DONE]",
        ),
        Endpoint(
            "POST",
            "/v1/completions",
            completion,
            "Completes texts or token ids.",
            body=CompletionRequest,
            neutral=COMPLETION_PARAMETERS,
            aliases=ALIASES,
            answer=Completion,
            event=CompletionStreamChunk,
            last="[DONE]",
        ),
    ]
