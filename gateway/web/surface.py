"""Work that is the same for every path: ids, callers, HEAD and OPTIONS, trailing slashes, headers for browsers."""

import logging
import re
from collections.abc import Callable, Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import APIError, is_anthropic
from gateway.keys.callers import OPEN_PATHS, Callers
from gateway.requests.holdings import Holdings
from gateway.web.cross_origin import CrossOrigin, allow, is_preflight

_OWN_ID = re.compile(r"[!-~]{1,128}")  # a client's request id: printable, and short
log = logging.getLogger("baton.gateway")


class Surface:
    """The layer around the application; only callers that `callers` accepts pass it.

    `methods` returns the methods of a path, and `refuse` makes error answers.
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
            scope.setdefault("state", {}).update(id=holdings.id, holdings=holdings)
            await self._answer(holdings.id, scope, receive, send)

    async def _answer(self, id: str, scope: Scope, receive: Receive, send: Send) -> None:
        asked, path = Headers(scope=scope), scope["path"].removesuffix("/") or "/"
        scope = {**scope, "path": path}
        shown = named_by_client(asked) or id
        headers = {"x-request-id": shown, **self._cross_origin.headers(path, asked)}
        if is_anthropic(path, asked):
            headers["request-id"] = id

        told: dict[str, str] = scope["state"].setdefault("told", {})  # further headers of the answer

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update({**told, **headers})
            await send(message)

        if scope["method"] == "OPTIONS" and is_preflight(asked):  # browsers send no key with a preflight request
            preflight = Response(status_code=204, headers=self._cross_origin.preflight(path, asked))
            await preflight(scope, receive, send_on)
            return
        try:
            caller = scope["state"]["caller"] = self._callers.of(path, asked)
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


def named_by_client(asked: Headers) -> str | None:
    """Returns the client's own id of the request, if it can be repeated and logged."""
    name = asked.get("x-request-id", "")
    return name if _OWN_ID.fullmatch(name) else None
