"""ASGI middleware of every path: request ids, callers, HEAD and OPTIONS, trailing slashes, headers for browsers."""

import logging
import re
import time
from collections.abc import Callable, Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import APIError, is_anthropic
from gateway.keys.callers import OPEN_PATHS, Callers
from gateway.requests.holdings import Holdings
from gateway.web.cross_origin import CrossOrigin, allow, is_preflight

_CLIENT_ID_REGEX = re.compile(r"[!-~]{1,128}")  # a client's request id: printable, and short
log = logging.getLogger("baton.gateway")


class RequestMiddleware:
    """Wraps the application. Requests that `callers` refuses do not reach it.

    It puts into the scope's state what endpoints need of a request: `id`, `received` (local time, s), `holdings`,
    `caller`, and `answer_headers`, to which endpoints add. `methods` returns the methods of a path, and `refuse` makes
    error answers.
    """

    def __init__(
        self,
        app: ASGIApp,
        holdings: Callable[[], Holdings],
        cross_origin: CrossOrigin,
        methods: Callable[[Scope], Sequence[str]],
        callers: Callers,
        refuse: Callable[[Request, APIError], Response],
    ) -> None:
        self._app = app
        self._holdings = holdings
        self._cross_origin = cross_origin
        self._methods = methods
        self._callers = callers
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._holdings() as holdings:
            scope.setdefault("state", {}).update(id=holdings.id, holdings=holdings, received=time.monotonic())
            await self._answer(holdings.id, scope, receive, send)

    async def _answer(self, id: str, scope: Scope, receive: Receive, send: Send) -> None:
        asked, path = Headers(scope=scope), scope["path"].removesuffix("/") or "/"
        scope = {**scope, "path": path}
        shown = client_id(asked) or id
        headers = {"x-request-id": shown, **self._cross_origin.headers(path, asked)}
        if is_anthropic(path, asked):
            headers["request-id"] = id

        added: dict[str, str] = scope["state"].setdefault("answer_headers", {})

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update({**added, **headers})
            await send(message)

        if scope["method"] == "OPTIONS" and is_preflight(asked):  # browsers send no key with a preflight request
            preflight = Response(status_code=204, headers=self._cross_origin.preflight(path, asked))
            await preflight(scope, receive, send_on)
            return
        try:
            caller = scope["state"]["caller"] = self._callers.identify(path, asked)
        except APIError as error:
            await self._refuse(Request(scope), error)(scope, receive, send_on)
            return
        if shown != id and path not in OPEN_PATHS:  # open paths need no key, and their requests are not logged
            log.info("request %s is %s to its client", id, shown, extra={"kind": caller.tenant})
        match scope["method"]:
            case "HEAD":  # uvicorn omits the body
                await self._app({**scope, "method": "GET"}, receive, send_on)
            case "OPTIONS" if methods := self._methods(scope):
                await Response(status_code=204, headers=allow(methods))(scope, receive, send_on)
            case _:
                await self._app(scope, receive, send_on)


def client_id(request_headers: Headers) -> str | None:
    """Returns the client's own id of the request, if it can be repeated and logged."""
    name = request_headers.get("x-request-id", "")
    return name if _CLIENT_ID_REGEX.fullmatch(name) else None
