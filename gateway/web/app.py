"""Assembles the application from its endpoints. Every error has the shape of the API that was asked."""

import re
from collections.abc import Callable

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Scope

from gateway.errors import APIError, error_of_status, failed, not_offered
from gateway.service import Gateway
from gateway.web.cross_origin import CrossOrigin, allow
from gateway.web.middleware import RequestMiddleware
from gateway.web.routes import (
    adapters,
    completions,
    docs,
    load_runs,
    messages,
    models,
    ollama,
    pooled,
    responses,
    status,
    tokens,
)
from gateway.web.routes.absent import absent
from gateway.web.serving import Serving

CHAT_ENDPOINT_GROUPS = (completions.endpoints, responses.endpoints, messages.endpoints)
"""Endpoints of models that answer chats."""
ENDPOINT_GROUPS = (
    ollama.endpoints,
    pooled.endpoints,
    tokens.endpoints,
    adapters.endpoints,
    models.endpoints,
    status.endpoints,
    load_runs.endpoints,
)


def make_app(gateway: Gateway) -> ASGIApp:
    """Returns the application of one gateway life. Raises `ConfigError` for a bad setting."""
    serving = Serving(gateway)
    described = [one._replace(made_for="chats") for part in CHAT_ENDPOINT_GROUPS for one in part(serving)]
    described += [endpoint for part in ENDPOINT_GROUPS for endpoint in part(serving)]
    endpoints = described + docs.endpoints(serving, described)
    routes = [Route(one.path, one.handle, methods=[one.method]) for one in endpoints]

    async def on_api_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, APIError)
        return serving.refuse(request, error)

    async def on_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path = request.scope["path"]  # `request.url` depends on the Host header
        if error.status_code in (404, 405) and (offer := absent(path)) is not None:
            return serving.refuse(request, not_offered(path, *offer))
        near = neighbour(path, lambda other: bool(taken(routes, {**request.scope, "path": other})))
        refusal = serving.refuse(request, error_of_status(error.status_code, path, request.method, near))
        if error.status_code == 405:
            refusal.headers.update(allow(taken(routes, request.scope)))
        return refusal

    async def on_error(request: Request, error: Exception) -> Response:
        return serving.refuse(request, failed("the gateway failed; its log says why", "internal_error"))

    app = FastAPI(
        routes=list(routes),
        exception_handlers={APIError: on_api_error, HTTPException: on_http_error, Exception: on_error},
        openapi_url=None,  # Baton's document describes msgspec's types
        redirect_slashes=False,
    )
    cross_origin = CrossOrigin(gateway.config.allow_origins)
    return RequestMiddleware(
        app, gateway.holdings, cross_origin, lambda scope: taken(routes, scope), gateway.callers, serving.refuse
    )


def neighbour(path: str, is_there: Callable[[str], bool]) -> str | None:
    """Returns the path that was probably meant, for a path with `/v1` twice or not at all, or with extra slashes."""
    single = re.sub("/{2,}", "/", path)
    guesses = (single, f"/v1{single}", f"/v1/{single.rpartition('/v1/')[2]}", single.removeprefix("/v1"))
    return next((guess for guess in guesses if guess != path and is_there(guess)), None)


def taken(routes: list[Route], scope: Scope) -> list[str]:
    """Returns the methods of the first route that fits a path; empty for an unknown path."""
    fits = [route for route in routes if route.matches(scope)[0] is not Match.NONE]
    return sorted({method for route in fits if route.path == fits[0].path for method in route.methods or ()})
