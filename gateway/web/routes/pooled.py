"""Answers without a chat: vectors of texts, and scores of pairs of texts."""

from collections.abc import Generator, Iterator, Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from contracts.pooling import Pooling
from gateway.pooled.admission import admitted, check_dimensions, tokens_in
from gateway.pooled.answers import embeddings, ranking, text_scores
from gateway.pooled.bodies import (
    RERANK_ALIASES,
    SCORE_ALIASES,
    inputs_of,
    pairs_of,
    parse_embeddings,
    parse_rerank,
    parse_score,
)
from gateway.pooled.schemas import (
    Embeddings,
    EmbeddingsRequest,
    PairScores,
    PooledFields,
    Ranking,
    RerankRequest,
    ScoreRequest,
)
from gateway.pooled.tokens import of_inputs, of_pairs
from gateway.pooled.vectors import likenesses, numbers, shortened
from gateway.requests.sample import AdmittedPrompt
from gateway.web.endpoint import Endpoint
from gateway.web.serving import Serving, caller, holdings

SCORES_PER_TURN = 64  # computed in one turn of the event loop


def endpoints(serving: Serving) -> list[Endpoint]:
    api = PooledAPI(serving)
    ranks, scores = "Sorts documents by their relevance to a query.", "Scores pairs of texts."
    return [
        Endpoint(
            "POST",
            "/v1/embeddings",
            api.embed,
            "Makes vectors of texts.",
            EmbeddingsRequest,
            Embeddings,
            made_for="texts",
        ),
        *(
            Endpoint("POST", path, api.rerank, ranks, RerankRequest, Ranking, aliases=RERANK_ALIASES, made_for="texts")
            for path in ("/v1/rerank", "/v2/rerank", "/rerank")
        ),
        *(
            Endpoint("POST", path, api.score, scores, ScoreRequest, PairScores, aliases=SCORE_ALIASES, made_for="texts")
            for path in ("/v1/score", "/score")
        ),
    ]


class PooledAPI:
    """Handlers of the endpoints that answer with vectors and scores."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._gateway = serving.gateway

    async def embed(self, request: Request) -> Response:
        pooling = await self._serving.pooling(request, "embed")
        body = await self._serving.read(request, parse_embeddings, ids=True)
        inputs, admission = inputs_of(body.input), self._gateway.ready_admission()
        check_dimensions(pooling, body.dimensions, self._gateway.model)
        size = sum(map(len, inputs))
        prompts = await admitted(
            admission, body, len(inputs), of_inputs(admission, inputs), size, "input", caller(request)
        )
        model, tokens, dimensions = body.model or self._gateway.model, tokens_in(prompts), body.dimensions

        def answer(vectors: list[bytes]) -> Iterator[bytes]:
            if dimensions is not None:
                vectors = [shortened(each, dimensions, normalized=pooling.normalized) for each in vectors]
            return embeddings(vectors, model, tokens, as_base64=body.encoding_format == "base64")

        return await self._serving.pooled(request, prompts, answer)

    async def rerank(self, request: Request) -> Response:
        pooling = await self._serving.pooling(request)
        body = await self._serving.read(request, parse_rerank)
        pairs = [(body.query, each if isinstance(each, str) else each.text) for each in body.documents]
        prompts = await self._scored(request, body, pairs, pooling, "documents")
        model, tokens, id = body.model or self._gateway.model, tokens_in(prompts), holdings(request).id

        def answer(results: list[bytes]) -> Iterator[bytes]:
            scores = yield from _collected(_scores(results, pairs, pooling))
            yield msgspec.json.encode(ranking(id, scores, body, model, tokens))

        return await self._serving.pooled(request, prompts, answer)

    async def score(self, request: Request) -> Response:
        pooling = await self._serving.pooling(request)
        body = await self._serving.read(request, parse_score)
        pairs = pairs_of(body)
        prompts = await self._scored(request, body, pairs, pooling, "text_2")
        model, tokens, id = body.model or self._gateway.model, tokens_in(prompts), holdings(request).id

        def answer(results: list[bytes]) -> Iterator[bytes]:
            scores = yield from _collected(_scores(results, pairs, pooling))
            yield msgspec.json.encode(text_scores(id, scores, model, tokens))

        return await self._serving.pooled(request, prompts, answer)

    async def _scored(
        self, request: Request, body: PooledFields, pairs: Sequence[tuple[str, str]], pooling: Pooling, param: str
    ) -> list[AdmittedPrompt]:
        """Returns the prompts of pairs; of a model of vectors those of all different texts, in order."""
        admission = self._gateway.ready_admission()
        tokenize, texts = of_pairs(admission, pairs, asks=bool(pooling.tokens)), len(pairs)
        if pooling.task == "embed":
            single = _texts(pairs)
            tokenize, texts = of_inputs(admission, single), len(single)
        size = sum(len(first) + len(second) for first, second in pairs)
        return await admitted(admission, body, texts, tokenize, size, param, caller(request))


def _texts(pairs: Sequence[tuple[str, str]]) -> list[str]:
    return list(dict.fromkeys(text for pair in pairs for text in pair))


def _collected(scores: Iterator[float]) -> Generator[bytes, None, list[float]]:
    """Returns all scores, and yields nothing after each `SCORES_PER_TURN`, so that other requests have their turn."""
    found = list[float]()
    for score in scores:
        found.append(score)
        if len(found) % SCORES_PER_TURN == 0:
            yield b""
    return found


def _scores(results: list[bytes], pairs: Sequence[tuple[str, str]], pooling: Pooling) -> Iterator[float]:
    """Yields the score of each pair: its own result, or the cosine of its texts' vectors."""
    if pooling.task == "score":
        return (numbers(each)[0] for each in results)
    vectors = dict(zip(_texts(pairs), results, strict=True))
    return likenesses((vectors[first], vectors[second]) for first, second in pairs)
