"""Serves the routes. Every answer has OpenAI's shape, errors too."""

import logging
import time
from collections.abc import Mapping
from functools import partial

import msgspec
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse
from starlette.exceptions import HTTPException
from starlette.responses import Response

from gateway.errors import APIError, failed, of_status
from gateway.http.body import BodyRoom, parsed, read_body
from gateway.http.disconnect import ClientGone, until_gone
from gateway.http.page import page
from gateway.http.sse import EventStream
from gateway.openai.admission import Admission
from gateway.openai.answers import Answers, Kind
from gateway.openai.replies import collect, events
from gateway.openai.schemas import SamplingFields, parse_chat, parse_completion
from gateway.reports.metrics import CONTENT_TYPE
from gateway.requests.sample import AdmittedPrompt
from gateway.service import Gateway

GONE = 499  # the client closed the connection; nobody reads this status
log = logging.getLogger("baton.gateway")


def make_app(gateway: Gateway) -> FastAPI:
    """Returns the application of one gateway life."""
    app = FastAPI(title="Baton", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    room = BodyRoom(max(gateway.config.body_memory, gateway.config.max_body))

    def id_of(request: Request) -> str:
        """Every request has an id, from its first mention to the last."""
        if not hasattr(request.state, "id"):
            request.state.id = gateway.new_id()
        return str(request.state.id)

    def refuse(request: Request, error: APIError) -> Response:
        gateway.refusals.report(error, id_of(request))
        return _json(error.body(), error.status, {"x-request-id": id_of(request), **error.headers()})

    async def on_api_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, APIError)
        return refuse(request, error)

    async def on_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        refusal = refuse(request, of_status(error.status_code, request.url.path, request.method))
        refusal.headers.update(error.headers or {})
        return refusal

    async def on_error(request: Request, error: Exception) -> Response:
        return refuse(request, failed("the gateway failed; its log says why", "internal_error"))

    app.add_exception_handler(APIError, on_api_error)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(Exception, on_error)

    async def answer(
        request: Request, kind: Kind, body: SamplingFields, prompts: list[AdmittedPrompt], received: float
    ) -> Response:
        requests = await gateway.open(prompts, id_of(request), received, bool(body.stream))
        streams = [stream for one in requests for stream in one.streams]
        options = body.stream_options
        answers = Answers(kind, gateway.model, requests, bool(options and options.include_usage))
        headers = {"x-request-id": answers.id}
        if body.stream:
            return EventStream(
                events(streams, answers),
                headers,
                refuse=partial(refuse, request),
                broke=partial(gateway.refusals.report, request=id_of(request)),
                leave=lambda: gateway.leave(requests),
            )
        try:
            return _json(await until_gone(request.receive, collect(streams, answers)), 200, headers)
        except ClientGone:
            return Response(status_code=GONE)
        finally:
            gateway.leave(requests)

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        received = time.monotonic()
        front = gateway.front()
        body = await parsed(parse_chat, await read_body(request, gateway.config.max_body, front.values(), room))
        return await answer(request, "chat", body, [await front.chat(body, _authorization(request))], received)

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        received = time.monotonic()
        front = gateway.front()
        body = await parsed(parse_completion, await read_body(request, gateway.config.max_body, front.values(), room))
        prompts = await front.completion(body, _authorization(request))
        return await answer(request, "completion", body, prompts, received)

    @app.get("/v1/models")
    async def models() -> Response:
        return _json({"object": "list", "data": [_model(gateway)]})

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        if name != gateway.model:
            message = f"the model {name!r} does not exist; this server has {gateway.model!r}"
            raise APIError(404, message, param="model", code="model_not_found")
        return _json(_model(gateway))

    @app.get("/health")
    @app.get("/ready")
    async def health() -> Response:
        stage, percent = gateway.readiness()
        ready = stage == "ready"
        state = {"status": "ok" if ready else "unavailable", "stage": stage, "percent": percent}
        return _json(state, 200 if ready else 503, {} if ready else {"retry-after": "1"})

    @app.get("/stats")
    async def stats() -> Response:
        return _json({"workers": await gateway.stats()})

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(gateway.metrics.page(), media_type=CONTENT_TYPE)

    @app.get("/")
    async def index(request: Request) -> Response:
        return HTMLResponse(page(gateway.model, gateway.readiness()[0], str(request.base_url).rstrip("/")))

    return app


def _authorization(request: Request) -> str:
    return request.headers.get("authorization", "")


def _model(gateway: Gateway) -> dict[str, object]:
    front: Admission | None = gateway.admission
    return {
        "id": gateway.model,
        "object": "model",
        "created": gateway.created,
        "owned_by": "baton",
        "max_model_len": (front.context() or None) if front is not None else None,
    }


def _json(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")
