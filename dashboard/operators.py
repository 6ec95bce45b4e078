"""Admits only operators: with an API key as the browser's password, and after that with a cookie."""

import asyncio
import base64
import hmac
import secrets
import time
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from infra.keys.api_key import KeyRecord
from infra.keys.key_ring import CHECK_INTERVAL_S, KeyRing

OPEN_PATHS = frozenset({"/_stcore/health"})  # health checks need no key
COOKIE_NAME = "baton-operator"


class OperatorsOnly:
    """ASGI middleware around the page. A cookie is valid while this process lives and its key is an operator's.

    A WebSocket needs the cookie: for pages of other sites browsers send passwords, but no SameSite=Strict cookie.
    """

    def __init__(self, page: ASGIApp, keys: KeyRing) -> None:
        self._page = page
        self._keys = keys
        self._secret = secrets.token_bytes(32)
        self._looked = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or scope["path"] in OPEN_PATHS:
            await self._page(scope, receive, send)
            return
        if time.monotonic() - self._looked > CHECK_INTERVAL_S:
            self._looked = time.monotonic()
            await asyncio.to_thread(self._keys.refresh)
        asked = Headers(scope=scope)
        if self._remembered(asked):
            await self._page(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif (record := self._keys.find(password(asked))) is None:
            wanted = {"www-authenticate": 'Basic realm="Baton: any name, and an operator\'s API key", charset="UTF-8"'}
            await PlainTextResponse("This page needs an operator's API key.\n", 401, wanted)(scope, receive, send)
        elif not record.operator:
            await PlainTextResponse("This API key is no operator's.\n", 403)(scope, receive, send)
        else:
            await self._page(scope, receive, self._remembering(record, scope["scheme"] == "https", send))

    def _remembering(self, record: KeyRecord, secure: bool, send: Send) -> Send:
        cookie = (
            f"{COOKIE_NAME}={record.id}.{self._mark(record.id)}; Path=/; HttpOnly; SameSite=Strict{'; Secure' * secure}"
        )

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).append("set-cookie", cookie)
            await send(message)

        return send_on

    def _remembered(self, asked: Headers) -> bool:
        try:
            morsel = SimpleCookie(asked.get("cookie", "")).get(COOKIE_NAME)
        except CookieError:
            return False
        id, _, mark = (morsel.value if morsel is not None else "").partition(".")
        fits = hmac.compare_digest(mark.encode(), self._mark(id).encode())
        record = self._keys.known(id)
        return fits and record is not None and record.operator

    def _mark(self, id: str) -> str:
        return hmac.digest(self._secret, id.encode(), "sha256").hex()


def password(asked: Headers) -> str:
    """Returns the key in a request's header (password or bearer token), or ''."""
    scheme, _, said = asked.get("authorization", "").strip().partition(" ")
    if scheme.lower() == "bearer":
        return said.strip()
    try:
        return base64.b64decode(said, validate=True).decode().partition(":")[2] if scheme.lower() == "basic" else ""
    except ValueError:
        return ""
