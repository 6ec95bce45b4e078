"""Stores responses with their conversations, so that a client can continue one at any gateway."""

import logging
from collections.abc import Callable

import msgspec
from msgspec import Struct, structs

from contracts.errors import StoreUnavailable
from gateway.errors import APIError, invalid, unavailable
from gateway.keys.caller import Caller
from gateway.requests.tenant import Tenants
from gateway.responses.events import ItemList, ResponseAnswer
from gateway.responses.items import InputText, Item, MessageItem, OutputText
from infra.redis.store import Outage
from infra.redis.stored import TenantStore

log = logging.getLogger("baton.gateway")


class StoredConversation(Struct, frozen=True):
    """A response, and all items of its conversation, the response's own output last."""

    response: ResponseAnswer
    items: list[Item]

    def listed(self, limit: int, descending: bool, after: str | None) -> ItemList:
        """Returns the response's input items that follow the item `after`. Raises `APIError` if that is missing."""
        said = self.items[: len(self.items) - len(self.response.output)]
        items = [_listed_item(item, f"{self.response.id}_{number}") for number, item in enumerate(said)]
        if descending:
            items.reverse()
        if after is not None:
            found = [number for number, item in enumerate(items) if item.id == after]
            if not found:
                raise invalid(f"after: this response has no input item {after[:256]!r}", "after")
            items = items[found[0] + 1 :]
        part = items[:limit]
        ends = (part[0].id, part[-1].id) if part else (None, None)
        return ItemList(data=part, first_id=ends[0], last_id=ends[1], has_more=len(items) > limit)


class Conversations:
    """Store of conversations. A tenant finds only its own."""

    def __init__(self, store: TenantStore, tenants: Tenants, now: Callable[[], float]) -> None:
        """`now` returns the Redis server's time, s."""
        self._store = store
        self._tenants = tenants
        self._now = now
        self._outage = Outage(log, "responses are answered and not stored")

    @property
    def keeps(self) -> bool:
        return self._store.keeps

    async def keep(self, caller: Caller, items: list[Item], response: ResponseAnswer) -> bool:
        """Stores a response after `items`. Returns False if that fails, which leaves the answer valid."""
        body = msgspec.json.encode(StoredConversation(response, [*items, *response.output]))
        if len(body) > self._store.largest:
            return False
        try:
            kept = await self._store.put(self._tenants.salt(caller), response.id, body, self._now())
        except StoreUnavailable as error:
            self._outage.begins(error)
            return False
        self._outage.ends()
        return kept

    async def get(self, caller: Caller, id: str) -> StoredConversation:
        """Returns a stored conversation. Raises `APIError`: 404 if this tenant has none, 503 without Redis."""
        try:
            body = await self._store.get(self._tenants.salt(caller), id)
        except StoreUnavailable:
            raise _unavailable() from None
        try:
            if body is not None:
                return msgspec.json.decode(body, type=StoredConversation)
        except msgspec.DecodeError:
            log.warning("a stored response is of another version, and taken for missing")
        raise APIError(404, f"there is no stored response {id[:256]!r}", param="response_id", code="not_found")

    async def previous(self, caller: Caller, id: str | None) -> list[Item]:
        """Returns all items up to and including a response's, or none without an id. Raises `APIError`."""
        if id is None:
            return []
        name = "previous_response_id"
        if not self.keeps:
            message = f"{name} is not supported: this server stores no responses (--store-ttl, --store-bytes)"
            raise invalid(message, name, "unsupported_parameter")
        try:
            return (await self.get(caller, id)).items
        except APIError as error:
            if error.status != 404:
                raise
        message = f"{name}: there is no stored response {id!r}; send the whole conversation as input"
        raise invalid(message, name, "previous_response_not_found")

    async def delete(self, caller: Caller, id: str) -> None:
        """Removes a conversation. Raises `APIError` as `get` does."""
        try:
            found = await self._store.delete(self._tenants.salt(caller), id)
        except StoreUnavailable:
            raise _unavailable() from None
        if not found:
            raise APIError(404, f"there is no stored response {id[:256]!r}", param="response_id", code="not_found")


def _unavailable() -> APIError:
    return unavailable("stored responses are out of reach", "store_unavailable", 2.0)


def _listed_item(item: Item, id: str) -> Item:
    if not isinstance(item, MessageItem):
        return structs.replace(item, id=item.id or id, status=item.status or "completed")
    content = item.content
    if isinstance(content, str):
        part = OutputText(text=content) if item.role == "assistant" else InputText(text=content)
        content = [part]
    return structs.replace(item, id=item.id or id, status=item.status or "completed", content=content)
