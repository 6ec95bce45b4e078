"""Lists and describes the model and its adapters, in vLLM's format, and in Anthropic's for its clients."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

from msgspec import UNSET, Struct, UnsetType, structs
from starlette.requests import Request
from starlette.responses import Response

from contracts.adapters import HeldAdapter
from gateway.errors import invalid, is_anthropic, no_model
from gateway.service import Gateway
from gateway.web.endpoint import Endpoint
from gateway.web.paging import page_size
from gateway.web.serving import Serving, reply

MAX_PAGE_MODELS = 1000


class Permission(Struct, frozen=True):
    """vLLM's permissions of a model: everybody may sample, nobody may train."""

    id: str
    created: int  # s since 1970
    object: str = "model_permission"
    allow_create_engine: bool = False
    allow_sampling: bool = True
    allow_logprobs: bool = True
    allow_search_indices: bool = False
    allow_view: bool = True
    allow_fine_tuning: bool = False
    organization: str = "*"
    group: str | None = None
    is_blocking: bool = False


class ModelCard(Struct, frozen=True):
    """Describes a model, as vLLM does."""

    id: str
    created: int  # s since 1970
    root: str  # source: a hub id, or the name of a directory
    max_model_len: int | None  # prompt + answer in tokens; null: no limit is known
    permission: list[Permission]
    object: str = "model"
    owned_by: str = "baton"
    parent: str | None = None  # the model of an adapter
    # Fields for Anthropic's clients, in answers to requests with the header `anthropic-version`.
    type: Literal["model"] | UnsetType = UNSET
    display_name: str | UnsetType = UNSET
    created_at: str | UnsetType = UNSET  # RFC 3339
    lifecycle: Literal["active"] | UnsetType = UNSET
    max_input_tokens: int | UnsetType | None = UNSET
    max_tokens: int | UnsetType | None = UNSET


class ModelList(Struct, frozen=True):
    """Lists the models."""

    data: list[ModelCard]
    object: str = "list"
    has_more: bool | UnsetType = UNSET  # this field and the next two are for Anthropic's clients, too
    first_id: str | UnsetType | None = UNSET
    last_id: str | UnsetType | None = UNSET


def endpoints(serving: Serving) -> list[Endpoint]:
    gateway = serving.gateway

    def adapters() -> dict[str, HeldAdapter]:
        named = gateway.workers.adapters()
        return {name: named[name] for name in sorted(named) if name not in gateway.names}

    async def models(request: Request) -> Response:
        listed = [_model(gateway, name) for name in gateway.names]
        listed += [_adapter(gateway, held) for held in adapters().values()]
        return reply(_page(listed, request) if _for_anthropic(request) else ModelList(listed))

    async def model(request: Request) -> Response:
        name, found = request.path_params["model"], adapters()
        if name not in gateway.names and name not in found:
            raise no_model(name, gateway.model, found)
        described = _adapter(gateway, found[name]) if name in found else _model(gateway, name)
        return reply(_described(described) if _for_anthropic(request) else described)

    return [
        Endpoint("GET", "/v1/models", models, "Lists the names of the model, and its adapters.", answer=ModelList),
        Endpoint("GET", "/v1/models/{model:path}", model, "Describes the model, or an adapter.", answer=ModelCard),
    ]


def context_of(gateway: Gateway) -> int | None:
    """Returns the maximum number of tokens of prompt + answer, None without a limit."""
    admission = gateway.admission
    return (admission.window.tokens() or None) if admission is not None else None


def _model(gateway: Gateway, name: str) -> ModelCard:
    permission = Permission(f"modelperm-{name}", gateway.created)
    return ModelCard(name, gateway.created, gateway.root, context_of(gateway), [permission])


def _adapter(gateway: Gateway, adapter: HeldAdapter) -> ModelCard:
    return structs.replace(_model(gateway, gateway.model), id=adapter.name, root=adapter.root, parent=gateway.model)


def _for_anthropic(request: Request) -> bool:
    return is_anthropic(request.scope["path"], request.headers)


def _described(model: ModelCard) -> ModelCard:
    """Returns a model with the fields for Anthropic's clients."""
    made = datetime.fromtimestamp(model.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return structs.replace(
        model,
        type="model",
        display_name=model.id,
        created_at=made,
        lifecycle="active",
        max_input_tokens=model.max_model_len,
        max_tokens=model.max_model_len,
    )


def _page(models: Sequence[ModelCard], request: Request) -> ModelList:
    """Returns the models after `after_id` or before `before_id`, `limit` at most. Raises `APIError`."""
    asked, ids = request.query_params, [model.id for model in models]
    limit, after, before = page_size(asked, MAX_PAGE_MODELS), asked.get("after_id"), asked.get("before_id")
    for name, id in (("after_id", after), ("before_id", before)):
        if id is not None and id not in ids:
            raise invalid(f"{name}: there is no model {id[:64]!r}", name)
    begin = ids.index(after) + 1 if after is not None else 0
    end = ids.index(before) if before is not None else len(ids)
    left = [_described(model) for model in models[begin:end]]
    page = left[-limit:] if before is not None and after is None else left[:limit]
    first, last = (page[0].id, page[-1].id) if page else (None, None)
    return ModelList(page, has_more=len(page) < len(left), first_id=first, last_id=last)
