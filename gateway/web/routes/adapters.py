"""Loads and unloads adapters, at vLLM's paths and with its answers."""

from typing import Annotated

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from gateway.openai.bodies.parsing import converted, json_object
from gateway.web.endpoint import Endpoint
from gateway.web.serving import Serving

TEXT_MEDIA = "text/plain"
AdapterText = Annotated[str, Meta(min_length=1, max_length=4096)]


class LoadAdapter(Struct, frozen=True):
    """Names an adapter, and its directory: below `--lora-root`, or as a path of the workers' hosts that lies there."""

    lora_name: AdapterText
    lora_path: AdapterText


class UnloadAdapter(Struct, frozen=True):
    """Names an adapter."""

    lora_name: AdapterText


def endpoints(serving: Serving) -> list[Endpoint]:
    loading = serving.gateway.adapters

    async def load(request: Request) -> Response:
        body = await serving.read(
            request, lambda written, unknown: converted(json_object(written), LoadAdapter, unknown)
        )
        await loading.load(body.lora_name, body.lora_path)
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    async def unload(request: Request) -> Response:
        body = await serving.read(
            request, lambda written, unknown: converted(json_object(written), UnloadAdapter, unknown)
        )
        await loading.unload(body.lora_name)
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    loads, unloads = "Loads an adapter.", "Unloads an adapter."
    return [
        Endpoint("POST", "/v1/load_lora_adapter", load, loads, LoadAdapter, media=TEXT_MEDIA),
        Endpoint("POST", "/v1/unload_lora_adapter", unload, unloads, UnloadAdapter, media=TEXT_MEDIA),
    ]
