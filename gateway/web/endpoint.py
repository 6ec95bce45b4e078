"""Describes an endpoint once, for the router and for /openapi.json alike."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from gateway.openai.bodies.parameters import NeutralValues

JSON_MEDIA = "application/json"
Handler = Callable[[Request], Awaitable[Response]]


class Endpoint(NamedTuple):
    """Holds what one method of one path does, and the types of what it takes and gives.

    Types are msgspec's, from which the schemas are made. `event` is that of each event's data.
    """

    method: Literal["GET", "POST", "DELETE"]
    path: str  # as Starlette writes it: `/v1/models/{name:path}`
    handle: Handler
    summary: str
    body: Any = None  # None: it takes none
    answer: Any = None  # None: what it gives is no JSON
    event: Any = None  # None: it does not stream
    last: str = ""  # the data of a stream's last event, where it is no JSON
    media: str = JSON_MEDIA  # of the answer
    shown: bool = True  # False: it is not in /openapi.json
    neutral: Mapping[str, NeutralValues] = {}  # unimplemented parameters, at harmless values
    others: Mapping[int, Any] = {}  # types of its answers by status, where they are no errors
