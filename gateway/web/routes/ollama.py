"""Ollama's API, as far as it asks models and does not manage them."""

import hashlib
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import invalid, no_model, renamed_fields
from gateway.ollama.answers import (
    OllamaAnswerMessage,
    OllamaChatAnswer,
    OllamaDetails,
    OllamaEmbedded,
    OllamaEmbedding,
    OllamaGenerated,
    OllamaLoadedModel,
    OllamaLoadedModels,
    OllamaModel,
    OllamaModels,
    OllamaShown,
    OllamaVersion,
    rfc3339,
)
from gateway.ollama.bodies import (
    parse_ollama_chat,
    parse_ollama_embed,
    parse_ollama_embedding,
    parse_ollama_generate,
    parse_ollama_show,
)
from gateway.ollama.schemas import (
    NEUTRAL_EMBED_FIELDS,
    NEUTRAL_FIELDS,
    NEUTRAL_GENERATE_FIELDS,
    OllamaChatRequest,
    OllamaEmbeddingRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaRequest,
    OllamaShowRequest,
)
from gateway.ollama.shaper import OllamaShaper
from gateway.ollama.translation import OLLAMA_FIELD_NAMES, chat_of, model_of, prompt_of, text_of
from gateway.openai.admitted_request import AdmittedRequest
from gateway.pooled.admission import admitted, check_dimensions, tokens_in
from gateway.pooled.schemas import PooledFields
from gateway.pooled.tokens import of_inputs
from gateway.pooled.vectors import numbers, shortened
from gateway.requests.request import Request as OpenRequest
from gateway.requests.sample import AdmittedPrompt
from gateway.web.endpoint import LINES_MEDIA, Endpoint
from gateway.web.serving import Serving, caller, received, reply

OLLAMA_VERSION = "0.12.6"
"""The version of Ollama whose API this is; its clients refuse older ones."""
encode = msgspec.json.Encoder().encode
NEVER_S = datetime(9999, 12, 31, tzinfo=UTC).timestamp()  # when a served model is unloaded


def endpoints(serving: Serving) -> list[Endpoint]:
    api = OllamaAPI(serving)
    chats, asks, shows = "Answers a chat, as Ollama does.", "Answers a prompt, as Ollama does.", "Describes a model."
    lists, loads, versions = "Lists the models.", "Lists the models in memory.", "Names the version of this API."
    return [
        Endpoint(
            "POST",
            "/api/chat",
            api.chat,
            chats,
            body=OllamaChatRequest,
            answer=OllamaChatAnswer,
            event=OllamaChatAnswer,
            stream=LINES_MEDIA,
            neutral=NEUTRAL_FIELDS,
            made_for="chats",
        ),
        Endpoint(
            "POST",
            "/api/generate",
            api.generate,
            asks,
            body=OllamaGenerateRequest,
            answer=OllamaGenerated,
            event=OllamaGenerated,
            stream=LINES_MEDIA,
            neutral=NEUTRAL_GENERATE_FIELDS,
            made_for="chats",
        ),
        Endpoint(
            "POST",
            "/api/embed",
            api.embed,
            "Makes vectors of texts, as Ollama does.",
            body=OllamaEmbedRequest,
            answer=OllamaEmbedded,
            neutral=NEUTRAL_EMBED_FIELDS,
            made_for="texts",
        ),
        Endpoint(
            "POST",
            "/api/embeddings",
            api.embed_one,
            "Makes the vector of a text, as older clients of Ollama ask.",
            body=OllamaEmbeddingRequest,
            answer=OllamaEmbedding,
            neutral=NEUTRAL_EMBED_FIELDS,
            made_for="texts",
        ),
        Endpoint("POST", "/api/show", api.show, shows, OllamaShowRequest, OllamaShown),
        Endpoint("GET", "/api/tags", api.tags, lists, answer=OllamaModels),
        Endpoint("GET", "/api/ps", api.loaded, loads, answer=OllamaLoadedModels),
        Endpoint("GET", "/api/version", api.version, versions, answer=OllamaVersion),
    ]


class OllamaAPI:
    """Handlers of the endpoints of Ollama's API."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._gateway = serving.gateway

    async def chat(self, request: Request) -> Response:
        body = await self._serving.read(request, parse_ollama_chat)
        if not body.messages:
            self._refuse_unknown_model(model_of(body.model))
            return reply(OllamaChatAnswer(message=OllamaAnswerMessage(), **_loaded(body)))
        admission = self._gateway.ready_admission()
        with renamed_fields(OLLAMA_FIELD_NAMES):
            admitted = await admission.chat(
                chat_of(body), caller(request), clamps_limit=True, drops_turns=body.truncate is not False
            )
        return await self._answer(request, body, admitted, chat=True)

    async def generate(self, request: Request) -> Response:
        body = await self._serving.read(request, parse_ollama_generate)
        if not body.prompt and not body.suffix:
            self._refuse_unknown_model(model_of(body.model))
            return reply(OllamaGenerated(**_loaded(body)))
        admission = self._gateway.ready_admission()
        with renamed_fields(OLLAMA_FIELD_NAMES):
            if body.raw or body.suffix or admission.tokenizer.template is None:
                if body.system:
                    raise invalid(
                        "system: a prompt without a chat template has none", "system", "conflicting_parameters"
                    )
                admitted = await admission.completion(text_of(body), caller(request), default=None)
            else:
                admitted = await admission.chat(prompt_of(body), caller(request), clamps_limit=True)
        return await self._answer(request, body, admitted, chat=False)

    async def embed(self, request: Request) -> Response:
        pooling = await self._serving.pooling(request, "embed")
        body = await self._serving.read(request, parse_ollama_embed)
        inputs = [body.input] if isinstance(body.input, str) else body.input
        check_dimensions(pooling, body.dimensions, self._gateway.model)
        if not inputs:
            self._refuse_unknown_model(model_of(body.model))
            return reply(OllamaEmbedded(model=body.model, embeddings=[]))
        prompts = await self._texts(request, body.model, inputs, cuts=body.truncate is not False)
        tokens, dimensions = tokens_in(prompts), body.dimensions or pooling.width

        def answer(vectors: list[bytes]) -> Iterator[bytes]:
            yield b'{"model":' + encode(body.model) + b',"embeddings":['
            for index, vector in enumerate(vectors):
                yield (b"," if index else b"") + encode(numbers(shortened(vector, dimensions, normalized=True)))
            spent = int(1e9 * (time.monotonic() - received(request)))
            yield b'],"total_duration":%d,"load_duration":0,"prompt_eval_count":%d}' % (spent, tokens)

        return await self._serving.pooled(request, prompts, answer)

    async def embed_one(self, request: Request) -> Response:
        await self._serving.pooling(request, "embed")
        body = await self._serving.read(request, parse_ollama_embedding)
        if not body.prompt:
            self._refuse_unknown_model(model_of(body.model))
            return reply(OllamaEmbedding(embedding=[]))
        prompts = await self._texts(request, body.model, [body.prompt], cuts=True)

        def answer(vectors: list[bytes]) -> Iterator[bytes]:
            yield encode(OllamaEmbedding(embedding=numbers(vectors[0])))

        return await self._serving.pooled(request, prompts, answer)

    async def _texts(self, request: Request, model: str, inputs: list[str], *, cuts: bool) -> list[AdmittedPrompt]:
        admission = self._gateway.ready_admission()
        fields = PooledFields(model=model_of(model), truncate_prompt_tokens=-1 if cuts else None)
        size = sum(map(len, inputs))
        with renamed_fields({"truncate_prompt_tokens": "truncate"}):
            return await admitted(
                admission, fields, len(inputs), of_inputs(admission, inputs), size, "input", caller(request)
            )

    async def show(self, request: Request) -> Response:
        body = await self._serving.read(request, parse_ollama_show)
        self._refuse_unknown_model(model_of(body.model or body.name))
        admission = self._gateway.ready_admission()
        details = self._details()
        kinds = {
            "tools": admission.calls_tools,
            "thinking": admission.thinks,
            "insert": admission.tokenizer.infill is not None,
        }
        capabilities = ["completion", *(kind for kind, has in kinds.items() if has)]
        info: dict[str, Any] = {"general.architecture": details.family, "general.basename": self._gateway.root}
        if admission.window.tokens():
            info[f"{details.family}.context_length"] = admission.window.tokens()
        shown = OllamaShown(
            modelfile="",
            parameters="\n".join(f"{name} {value:g}" for name, value in admission.tokenizer.defaults.items()),
            template=admission.tokenizer.template_source or "",
            details=details,
            model_info=info,
            capabilities=capabilities if admission.pooling() is None else ["embedding"],
            modified_at=rfc3339(self._gateway.created),
        )
        return reply(shown)

    async def tags(self, request: Request) -> Response:
        made, details = rfc3339(self._gateway.created), self._details()
        return reply(
            OllamaModels(
                models=[
                    OllamaModel(name=name, model=name, modified_at=made, digest=digest, details=details)
                    for name, digest in self._digests().items()
                ]
            )
        )

    async def loaded(self, request: Request) -> Response:
        context, details, until = self._gateway.ready_admission().window.tokens(), self._details(), rfc3339(NEVER_S)
        return reply(
            OllamaLoadedModels(
                models=[
                    OllamaLoadedModel(
                        name=name, model=name, digest=digest, details=details, context_length=context, expires_at=until
                    )
                    for name, digest in self._digests().items()
                ]
            )
        )

    async def version(self, request: Request) -> Response:
        return reply(OllamaVersion(version=OLLAMA_VERSION))

    async def _answer(self, request: Request, body: OllamaRequest, admitted: AdmittedRequest, chat: bool) -> Response:
        def shape(requests: list[OpenRequest]) -> OllamaShaper:
            return OllamaShaper(body.model, requests[0], chat)

        return await self._serving.answer(request, admitted, body.stream is not False, shape, LINES_MEDIA)

    def _digests(self) -> dict[str, str]:
        """Returns the names of the model and its adapters, each with a digest of its name and source."""
        gateway = self._gateway
        roots = {gateway.model: gateway.root}
        roots |= {name: held.root for name, held in sorted(gateway.workers.adapters().items())}
        return {name: hashlib.sha256(f"{name}\n{root}".encode()).hexdigest() for name, root in roots.items()}

    def _refuse_unknown_model(self, name: str) -> None:
        """Raises `APIError` if there is no model with this name."""
        names = self._digests().keys()
        if name not in names:
            raise no_model(name, self._gateway.model, names - {self._gateway.model})

    def _details(self) -> OllamaDetails:
        family = self._gateway.ready_admission().tokenizer.family
        return OllamaDetails(family=family, families=[family])


def _loaded(body: OllamaRequest) -> dict[str, Any]:
    return {"model": body.model, "created_at": rfc3339(time.time()), "done": True, "done_reason": "load"}
