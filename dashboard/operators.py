"""Lets operators in and nobody else: by an API key as a password, which a browser asks for, then by a cookie."""

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

OPEN = frozenset({"/_stcore/health"})  # whether the page answers, for those who watch over it
COOKIE = "baton-operator"


class OperatorsOnly:
    """Stands around the page. A cookie is good while this process lives and its key is an operator's.

    A socket is opened by the cookie alone: browsers send passwords, but no strict cookie, for the pages of others.
    """

    def __init__(self, page: ASGIApp, keys: KeyRing) -> None:
        self._page = page
        self._keys = keys
        self._secret = secrets.token_bytes(32)
        self._looked = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request, as ASGI calls an application."""
        if scope["type"] not in ("http", "websocket") or scope["path"] in OPEN:
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
        """Returns what sends an answer with a cookie."""
        cookie = f"{COOKIE}={record.id}.{self._mark(record.id)}; Path=/; HttpOnly; SameSite=Strict{'; Secure' * secure}"

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).append("set-cookie", cookie)
            await send(message)

        return send_on

    def _remembered(self, asked: Headers) -> bool:
        try:
            morsel = SimpleCookie(asked.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        id, _, mark = (morsel.value if morsel is not None else "").partition(".")
        fits = hmac.compare_digest(mark.encode(), self._mark(id).encode())
        record = self._keys.known(id)
        return fits and record is not None and record.operator

    def _mark(self, id: str) -> str:
        return hmac.digest(self._secret, id.encode(), "sha256").hex()


def password(asked: Headers) -> str:
    """Returns the key in a request's header, as a password or a bearer token; empty for none."""
    scheme, _, said = asked.get("authorization", "").strip().partition(" ")
    if scheme.lower() == "bearer":
        return said.strip()
    try:
        return base64.b64decode(said, validate=True).decode().partition(":")[2] if scheme.lower() == "basic" else ""
    except ValueError:
        return ""
