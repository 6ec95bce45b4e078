"""Writes answers with vectors and scores, vectors in pieces: a thousand of them have megabytes of JSON."""

import time
from collections.abc import Iterator, Sequence

import msgspec

from gateway.pooled.schemas import (
    Embedding,
    PairScore,
    PairScores,
    PooledUsage,
    RankedDocument,
    Ranking,
    RerankDocument,
    RerankRequest,
)
from gateway.pooled.vectors import in_base64, numbers

encode = msgspec.json.Encoder().encode


def usage_of(tokens: int) -> PooledUsage:
    return PooledUsage(prompt_tokens=tokens, total_tokens=tokens)


def embeddings(vectors: Sequence[bytes], model: str, tokens: int, *, as_base64: bool) -> Iterator[bytes]:
    """Yields the JSON of `Embeddings`, a piece for each vector."""
    yield b'{"object":"list","data":['
    for index, vector in enumerate(vectors):
        written = Embedding(index=index, embedding=in_base64(vector) if as_base64 else numbers(vector))
        yield (b"," if index else b"") + encode(written)
    yield b'],"model":' + encode(model) + b',"usage":' + encode(usage_of(tokens)) + b"}"


def ranking(id: str, scores: Sequence[float], body: RerankRequest, model: str, tokens: int) -> Ranking:
    """Returns the documents, best first; of equal scores the earlier document comes first."""
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n or None]
    results = [RankedDocument(index=index, relevance_score=scores[index]) for index in order]
    if body.return_documents is not False:
        texts = [each if isinstance(each, str) else each.text for each in body.documents]
        results = [msgspec.structs.replace(each, document=RerankDocument(texts[each.index])) for each in results]
    return Ranking(id=f"rerank-{id}", model=model, usage=usage_of(tokens), results=results)


def text_scores(id: str, scores: Sequence[float], model: str, tokens: int) -> PairScores:
    data = [PairScore(index=index, score=score) for index, score in enumerate(scores)]
    return PairScores(id=f"score-{id}", created=int(time.time()), model=model, data=data, usage=usage_of(tokens))
