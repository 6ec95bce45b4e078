"""Describes an endpoint once, for both the router and /openapi.json."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from gateway.openai.bodies.parameters import Alias, NeutralValues

JSON_MEDIA = "application/json"
EVENTS_MEDIA = "text/event-stream"
LINES_MEDIA = "application/x-ndjson"  # a line of JSON for each event
Handler = Callable[[Request], Awaitable[Response]]


class Endpoint(NamedTuple):
    """One method of one path: its handler, and the types of its body and answers.

    Types are msgspec types, from which the schemas are made. `event` is the type of each event's data.
    """

    method: Literal["GET", "POST", "DELETE"]
    path: str  # as Starlette writes it: `/v1/models/{name:path}`
    handle: Handler
    summary: str
    body: Any = None  # None: no body
    answer: Any = None  # None: not JSON
    event: Any = None  # None: no stream
    stream: str = EVENTS_MEDIA  # media type of the stream
    last: str = ""  # data of a stream's last event, if that is not JSON
    media: str = JSON_MEDIA  # media type of the answer
    shown: bool = True  # False: not in /openapi.json
    neutral: Mapping[str, NeutralValues] = {}  # unimplemented parameters, at harmless values
    aliases: Mapping[str, Alias] = {}  # other servers' names of parameters
    made_for: Literal["any", "chats", "texts"] = "any"  # models that answer it: of chats, or of vectors and scores
    others: Mapping[int, Any] = {}  # types of further answers by status, except errors
