"""Serves the completions of OpenAI's API: of chats and of texts."""

import time

from starlette.requests import Request
from starlette.responses import Response

from gateway.http.endpoint import Endpoint
from gateway.http.serving import Serving, authorization
from gateway.openai.answers import Answers, Kind
from gateway.openai.bodies import parse_chat, parse_completion
from gateway.openai.replies import collect, events
from gateway.openai.schemas import ChatRequest, CompletionRequest, SamplingFields
from gateway.requests.sample import AdmittedPrompt


def endpoints(serving: Serving) -> list[Endpoint]:
    """Returns the endpoints."""
    gateway = serving.gateway

    async def answer(
        request: Request, kind: Kind, body: SamplingFields, prompts: list[AdmittedPrompt], received: float
    ) -> Response:
        requests = await gateway.open(prompts, serving.id_of(request), received, bool(body.stream))
        streams = [stream for one in requests for stream in one.streams]
        options = body.stream_options
        answers = Answers(kind, gateway.model, requests, bool(options and options.include_usage))
        if body.stream:
            return serving.stream(request, requests, events(streams, answers))
        return await serving.whole(request, requests, collect(streams, answers))

    async def chat(request: Request) -> Response:
        received = time.monotonic()
        body = await serving.read(request, parse_chat)
        prompt = await gateway.front().chat(body, authorization(request))
        return await answer(request, "chat", body, [prompt], received)

    async def completion(request: Request) -> Response:
        received = time.monotonic()
        body = await serving.read(request, parse_completion)
        prompts = await gateway.front().completion(body, authorization(request))
        return await answer(request, "completion", body, prompts, received)

    return [
        Endpoint("POST", "/v1/chat/completions", chat, "Answers a chat.", body=ChatRequest),
        Endpoint("POST", "/v1/completions", completion, "Completes texts or token ids.", body=CompletionRequest),
    ]
