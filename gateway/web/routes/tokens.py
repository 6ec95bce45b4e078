"""Serves /tokenize, /detokenize and /tokenizer_info, at vLLM's paths and below /v1."""

from starlette.requests import Request
from starlette.responses import Response

from gateway.openai.tokens import (
    Detokenize,
    Detokenized,
    TokenizeChat,
    Tokenized,
    TokenizerInfo,
    TokenizeText,
    detokenized,
    parse_detokenize,
    parse_tokenize,
    tokenized,
    tokenizer_info,
)
from gateway.web.endpoint import Endpoint
from gateway.web.serving import Serving, caller, reply


def endpoints(serving: Serving) -> list[Endpoint]:
    async def tokenize(request: Request) -> Response:
        body = await serving.read(request, parse_tokenize)
        await serving.admit(request)
        return reply(await tokenized(serving.gateway.ready_admission(), body, caller(request).tenant_share))

    async def detokenize(request: Request) -> Response:
        body = await serving.read(request, parse_detokenize, ids=True)
        await serving.admit(request)
        return reply(await detokenized(serving.gateway.ready_admission(), body, caller(request).tenant_share))

    async def info(request: Request) -> Response:
        return reply(tokenizer_info(serving.gateway.ready_admission()))

    found = []
    for base in ("", "/v1"):
        to_tokens = "Turns a text or a chat into token ids."
        found += [
            Endpoint("POST", f"{base}/tokenize", tokenize, to_tokens, (TokenizeText, TokenizeChat), answer=Tokenized),
            Endpoint("POST", f"{base}/detokenize", detokenize, "Turns ids into text.", Detokenize, answer=Detokenized),
            Endpoint("GET", f"{base}/tokenizer_info", info, "Describes the tokenizer.", answer=TokenizerInfo),
        ]
    return found
