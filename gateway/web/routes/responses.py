"""OpenAI's Responses API."""

from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import invalid, renamed_fields
from gateway.keys.caller import Caller
from gateway.openai.bodies.schemas import ChatRequest
from gateway.openai.tokens import counted_tokens
from gateway.requests.request import Request as OpenRequest
from gateway.responses.bodies import parse_response
from gateway.responses.events import Event, InputTokens, ItemList, ResponseAnswer, ResponseDeleted
from gateway.responses.items import Item
from gateway.responses.schemas import ResponsesRequest
from gateway.responses.shaper import ResponseShaper
from gateway.responses.translation import RESPONSES_FIELD_NAMES, chat_of, items_of
from gateway.web.endpoint import Endpoint
from gateway.web.paging import page_size
from gateway.web.serving import Serving, caller, reply

MAX_LISTED_ITEMS = 100  # maximum number of input items in a list
DEFAULT_LISTED_ITEMS = 20  # page size without `limit`
CHARACTERS_PER_ITEM = 8  # assumed size of an item: hundreds of items are translated on a thread


def endpoints(serving: Serving) -> list[Endpoint]:
    api = ResponsesAPI(serving)
    path, one = "/v1/responses", "/v1/responses/{id}"
    counts, lists = "Counts the tokens of a response's prompt.", "Lists what a stored response answers."
    refuses = "Refuses: nothing runs in the background."
    return [
        Endpoint("POST", path, api.create, "Makes a response.", ResponsesRequest, ResponseAnswer, Event),
        Endpoint("POST", f"{path}/input_tokens", api.count, counts, ResponsesRequest, InputTokens),
        Endpoint("GET", one, api.retrieve, "Gives a stored response.", answer=ResponseAnswer),
        Endpoint("DELETE", one, api.delete, "Deletes a stored response.", answer=ResponseDeleted),
        Endpoint("POST", f"{one}/cancel", api.cancel, refuses, answer=ResponseAnswer),
        Endpoint("GET", f"{one}/input_items", api.input_items, lists, answer=ItemList),
    ]


class ResponsesAPI:
    """Handlers of the endpoints of the Responses API."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._gateway = serving.gateway
        self._conversations = serving.gateway.conversations

    async def create(self, request: Request) -> Response:
        body = await self._serving.read(request, parse_response)
        whose, admission = caller(request), self._gateway.ready_admission()
        said = await self._conversation_items(whose, body)
        with renamed_fields(RESPONSES_FIELD_NAMES):
            chat = await self._chat(whose, body, said)
            admitted = await admission.chat(chat, whose, drops_turns=body.truncation == "auto")
        stores = body.store is not False and self._conversations.keeps
        keep = partial(self._conversations.keep, whose, said) if stores else None

        def shape(requests: list[OpenRequest]) -> ResponseShaper:
            bytes_of, thought_end = admission.tokenizer.bytes_of, admission.thought_end
            return ResponseShaper(body.model or self._gateway.model, body, requests[0], bytes_of, thought_end, keep)

        return await self._serving.answer(request, admitted, bool(body.stream), shape)

    async def count(self, request: Request) -> Response:
        body = await self._serving.read(request, parse_response)
        await self._serving.admit(request)
        whose, admission = caller(request), self._gateway.ready_admission()
        with renamed_fields(RESPONSES_FIELD_NAMES):
            chat = await self._chat(whose, body, await self._conversation_items(whose, body))
            ids = await counted_tokens(admission, chat, whose.tenant_share)
        return reply(InputTokens(input_tokens=len(ids)))

    async def retrieve(self, request: Request) -> Response:
        if request.query_params.get("stream", "false") != "false":
            raise invalid("stream is not supported here: a stored response is given whole", "stream")
        found = await self._conversations.get(caller(request), request.path_params["id"])
        return reply(found.response)

    async def delete(self, request: Request) -> Response:
        id = request.path_params["id"]
        await self._conversations.delete(caller(request), id)
        return reply(ResponseDeleted(id=id))

    async def cancel(self, request: Request) -> Response:
        await self._conversations.get(caller(request), request.path_params["id"])
        message = "this response is done; one in progress is cancelled by closing its connection"
        raise invalid(message, "response_id", "not_cancellable")

    async def input_items(self, request: Request) -> Response:
        query = request.query_params
        limit, order = page_size(query, MAX_LISTED_ITEMS, DEFAULT_LISTED_ITEMS), query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise invalid(f"order: {order[:64]!r} is neither 'asc' nor 'desc'", "order")
        found = await self._conversations.get(caller(request), request.path_params["id"])
        return reply(found.listed(limit, order == "desc", query.get("after")))

    async def _conversation_items(self, whose: Caller, body: ResponsesRequest) -> list[Item]:
        """Returns the items of earlier turns and of this body. Raises `APIError` for an unknown turn."""
        return [*await self._conversations.previous(whose, body.previous_response_id), *items_of(body)]

    async def _chat(self, whose: Caller, body: ResponsesRequest, items: list[Item]) -> ChatRequest:
        size = CHARACTERS_PER_ITEM * len(items)
        return await self._gateway.ready_admission().work.run(
            partial(chat_of, body, items), size, "input", whose.tenant_share
        )
