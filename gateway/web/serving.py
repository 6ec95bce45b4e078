"""The steps that all endpoints share: reading a body, and answering whole or with a stream of events."""

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from contracts.pooling import Pooling, PoolingTask
from gateway.errors import APIError, api_of
from gateway.keys.caller import Caller
from gateway.openai.admitted_request import AdmittedRequest
from gateway.openai.answers.json_pieces import json_pieces
from gateway.openai.answers.replies import Shaper, collect, send_events
from gateway.openai.bodies.unknown_fields import IgnoredFieldsLog, UnknownFields
from gateway.openai.context_window import MAX_VALUES_WITHOUT_IDS
from gateway.pooled.admission import pooling_of
from gateway.pooled.results import pooled_results
from gateway.reports.traces import RequestTrace
from gateway.requests.holdings import Holdings
from gateway.requests.request import Request as OpenRequest
from gateway.requests.sample import AdmittedPrompt
from gateway.service import Gateway
from gateway.web.body import BodyReader
from gateway.web.disconnect import ClientGone, until_gone
from gateway.web.endpoint import EVENTS_MEDIA
from gateway.web.pieced_answer import PiecedAnswer
from gateway.web.sse import EventStream
from gateway.web.timing import server_timing

IGNORED_FIELDS_HEADER = "x-baton-ignored-fields"
STATUS_CLIENT_GONE = 499  # the client closed the connection, so this status is never read
Body = TypeVar("Body")


class Serving:
    """Reads and answers the requests of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self._bodies = BodyReader(gateway.config.max_body, gateway.config.body_memory)
        self._ignored = IgnoredFieldsLog()

    async def read(self, request: Request, parse: Callable[[bytes, UnknownFields], Body], ids: bool = False) -> Body:
        """Returns the result of `parse` for the body. A body with token `ids` may have more JSON values than others.

        Ignored fields are named in a header of the answer. Raises `APIError`, also while the key is beyond its limits
        or the gateway is not ready.
        """
        gateway = self.gateway
        gateway.limiter.check(caller(request))
        values = gateway.ready_admission().window.body_values() if ids else MAX_VALUES_WITHOUT_IDS
        unknown = UnknownFields(gateway.config.unknown_fields == "ignore")
        body = await self._bodies.read(request, lambda written: parse(written, unknown), values)
        if ignored := unknown.report():
            request.state.answer_headers[IGNORED_FIELDS_HEADER] = ", ".join(ignored)
            self._ignored.log(ignored)
        return body

    async def admit(self, request: Request, tokens: int | None = None) -> None:
        """Counts a request against its key's limits; `tokens` is None if it needs no worker. Raises `APIError`."""
        request.state.answer_headers.update(await holdings(request).admit(caller(request), tokens))

    async def answer(
        self,
        request: Request,
        admitted: AdmittedRequest,
        streaming: bool,
        shape: Callable[[list[OpenRequest]], Shaper],
        media: str = EVENTS_MEDIA,
    ) -> Response:
        """Answers admitted prompts, whole or with a stream of type `media`, through the shaper that `shape` returns.

        Raises `APIError`.
        """
        tokens = sum(prompt.reserved for prompt in admitted.prompts)
        await self.admit(request, tokens)
        trace = self._trace(request)
        try:
            opening = holdings(request).open(admitted.prompts, received(request), streaming, trace)
            open = await until_gone(request.receive, opening)  # the requests may have to wait for their turn
        except ClientGone:
            return Response(status_code=STATUS_CLIENT_GONE)
        streams = [stream for one in open for stream in one.streams]
        parsers = [admitted.parser() for _ in streams]
        shaper = shape(open)
        if streaming:
            return EventStream(
                partial(send_events, streams, parsers, shaper),
                headers=partial(server_timing, open),
                refuse=partial(self.refuse, request),
                end=shaper.failure,
                broke=partial(self._report, request),
                media=media,
            )
        return await self.whole(request, open, collect(streams, parsers, shaper))

    async def pooled(
        self,
        request: Request,
        prompts: Sequence[AdmittedPrompt],
        answer: Callable[[list[bytes]], Iterable[bytes]],
    ) -> Response:
        """Answers with the pieces that `answer` makes of the prompts' results, fp32. Raises `APIError`."""
        await self.admit(request, sum(prompt.reserved for prompt in prompts))
        trace = self._trace(request)
        try:
            asking = pooled_results(holdings(request), prompts, received(request), trace)
            open = await until_gone(request.receive, asking)
            vectors = [one.samples[0].vector for one in open]
            return PiecedAnswer(answer(vectors), server_timing(open))
        except ClientGone:
            return Response(status_code=STATUS_CLIENT_GONE)
        finally:
            holdings(request).end()

    async def pooling(self, request: Request, task: PoolingTask | None = None) -> Pooling:
        """Returns how the model pools the states of a text, for `task` if given. Raises `APIError` if it does not."""
        ready = self.gateway.workers.ready
        return await pooling_of(self.gateway.ready_admission(), ready, request.scope["path"], caller(request), task)

    def _trace(self, request: Request) -> RequestTrace | None:
        """Begins the request's trace, if it is sampled, and names its position to the client."""
        traces = self.gateway.traces
        name = f"POST {request.scope['path']}"
        trace = traces.begin(request.headers, name, received(request)) if traces is not None else None
        if trace is not None:
            request.state.answer_headers.update(trace.headers())
        return trace

    async def whole(self, request: Request, open: list[OpenRequest], answer: Coroutine[Any, Any, Any]) -> Response:
        """Answers with the body that `answer` returns, and ends the request's holdings. Raises `APIError`."""
        try:
            body = await until_gone(request.receive, answer)
            return PiecedAnswer(json_pieces(body), server_timing(open))
        except ClientGone:
            return Response(status_code=STATUS_CLIENT_GONE)
        finally:
            holdings(request).end()

    def refuse(self, request: Request, error: APIError) -> Response:
        """Answers with an error, in the shape of the API that was asked."""
        self._report(request, error)
        body = error.body_for(api_of(request.scope["path"], request.headers), holdings(request).id)
        return reply(body, error.status, error.headers())

    def _report(self, request: Request, error: APIError) -> None:
        known: Caller | None = getattr(request.state, "caller", None)
        self.gateway.refusals.report(error, holdings(request).id, known.tenant if known is not None else "")


def caller(request: Request) -> Caller:
    found: Caller = request.state.caller
    return found


def received(request: Request) -> float:
    """Returns the local time in s at which the request's headers were here."""
    time: float = request.state.received
    return time


def holdings(request: Request) -> Holdings:
    found: Holdings = request.state.holdings
    return found


def reply(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")
