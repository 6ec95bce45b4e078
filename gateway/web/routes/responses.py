"""Serves the Responses API."""

import time
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import APIError, invalid, named
from gateway.openai.tokens import MOST
from gateway.requests.request import Request as Open
from gateway.responses.bodies import parse_response
from gateway.responses.events import Event, InputTokens, ItemList, ResponseAnswer, ResponseDeleted
from gateway.responses.schemas import ResponsesRequest
from gateway.responses.shaper import ResponseShaper
from gateway.responses.translation import NAMES, chat_of, items_of
from gateway.web.endpoint import Endpoint
from gateway.web.paging import page_size
from gateway.web.serving import Serving, caller, reply

LISTED = 100  # input items that one answer lists, at most
USUAL = 20  # … where the client does not say
ITEM = 8  # characters of work that an item is taken for: hundreds of them are translated on a thread


def endpoints(serving: Serving) -> list[Endpoint]:
    """Returns the endpoints."""
    gateway = serving.gateway
    conversations = gateway.conversations

    async def create(request: Request) -> Response:
        received = time.monotonic()
        body = await serving.read(request, parse_response)
        front, whose = gateway.front(), caller(request)
        said = [*await conversations.previous(whose, body.previous_response_id), *items_of(body)]
        with named(NAMES):
            chat = await front.tokenized(partial(chat_of, body, said), ITEM * len(said), "input", whose.party)
            admitted = await front.chat(chat, whose)
        stores = body.store is not False and conversations.keeps
        keep = partial(conversations.keep, whose, said) if stores else None
        shapers: list[ResponseShaper] = []

        def shape(requests: list[Open]) -> ResponseShaper:
            bytes_of, end = front.tokenizer.bytes_of, front.thought_end
            shapers.append(ResponseShaper(body.model or gateway.model, body, requests[0], bytes_of, end, keep))
            return shapers[0]

        def failure(error: APIError) -> bytes:
            return shapers[0].failure(error)

        return await serving.answer(request, admitted, received, bool(body.stream), shape, failure)

    async def count(request: Request) -> Response:
        body = await serving.read(request, parse_response)
        await serving.admit(request)
        front, whose = gateway.front(), caller(request)
        said = [*await conversations.previous(whose, body.previous_response_id), *items_of(body)]
        with named(NAMES):
            chat = await front.tokenized(partial(chat_of, body, said), ITEM * len(said), "input", whose.party)
            with front.room(chat, 1):
                ids = await front.chat_tokens(chat, max(MOST, front.context()), whose.party)
        return reply(InputTokens(input_tokens=len(ids)))

    async def retrieve(request: Request) -> Response:
        if request.query_params.get("stream", "false") != "false":
            raise invalid("stream is not supported here: a stored response is given whole", "stream")
        found = await conversations.get(caller(request), request.path_params["id"])
        return reply(found.response)

    async def delete(request: Request) -> Response:
        id = request.path_params["id"]
        await conversations.delete(caller(request), id)
        return reply(ResponseDeleted(id=id))

    async def cancel(request: Request) -> Response:
        await conversations.get(caller(request), request.path_params["id"])
        message = "this response is done; one in progress is cancelled by closing its connection"
        raise invalid(message, "response_id", "not_cancellable")

    async def input_items(request: Request) -> Response:
        query = request.query_params
        limit, order = page_size(query, LISTED, USUAL), query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise invalid(f"order: {order[:64]!r} is neither 'asc' nor 'desc'", "order")
        found = await conversations.get(caller(request), request.path_params["id"])
        return reply(found.listed(limit, order == "desc", query.get("after")))

    path, one = "/v1/responses", "/v1/responses/{id}"
    counts, lists = "Counts the tokens of a response's prompt.", "Lists what a stored response answers."
    return [
        Endpoint("POST", path, create, "Makes a response.", ResponsesRequest, ResponseAnswer, Event),
        Endpoint("POST", f"{path}/input_tokens", count, counts, ResponsesRequest, InputTokens),
        Endpoint("GET", one, retrieve, "Gives a stored response.", answer=ResponseAnswer),
        Endpoint("DELETE", one, delete, "Deletes a stored response.", answer=ResponseDeleted),
        Endpoint("POST", f"{one}/cancel", cancel, "Refuses: nothing runs in the background.", answer=ResponseAnswer),
        Endpoint("GET", f"{one}/input_items", input_items, lists, answer=ItemList),
    ]
