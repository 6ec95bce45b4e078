"""Defines the bodies and answers of /v1/embeddings (OpenAI's), /v1/rerank (Jina's and Cohere's) and /score (vLLM's)."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from gateway.openai.bodies.schemas import MAX_PRIORITY, MIN_PRIORITY, Label

MAX_TEXTS = 2048  # of one request, as in OpenAI's API

Texts = Annotated[list[str], Meta(min_length=1, max_length=MAX_TEXTS)]
CutTokens = Annotated[int, Meta(ge=-1)]  # -1: as many as the model takes


class PooledFields(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of all endpoints that ask for the results of texts."""

    model: str | None = None
    truncate_prompt_tokens: CutTokens | None = None  # of each text its beginning; null: longer texts are refused
    priority: Annotated[int, Meta(ge=MIN_PRIORITY, le=MAX_PRIORITY)] | None = None
    user: Label | None = None  # a label, without effect here


class EmbeddingsRequest(PooledFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of /v1/embeddings. An input is text or token ids; in a list, each input has a vector."""

    input: str | Annotated[list[str | int | list[int]], Meta(min_length=1)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None


class RerankDocument(Struct, frozen=True):
    """A document as an object."""

    text: str


class RerankRequest(PooledFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of /v1/rerank."""

    query: str
    documents: Annotated[list[str | RerankDocument], Meta(min_length=1, max_length=MAX_TEXTS)]
    top_n: Annotated[int, Meta(ge=0)] | None = None  # null and 0: all documents
    return_documents: bool | None = None  # true by default


class ScoreRequest(PooledFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of /score: one text for all of `text_2`, or as many texts."""

    text_1: str | Texts
    text_2: str | Texts
    encoding_format: Literal["float"] | None = None


class PooledUsage(Struct, frozen=True, kw_only=True):
    """Token counts."""

    prompt_tokens: int
    total_tokens: int


class Embedding(Struct, frozen=True, kw_only=True):
    """One vector, as numbers or as the base64 of little-endian fp32 values."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class Embeddings(Struct, frozen=True, kw_only=True):
    """The vectors of all inputs, in their order."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: PooledUsage


class RankedDocument(Struct, frozen=True, kw_only=True):
    """A document's place among those of the body, and its score."""

    index: int
    relevance_score: float
    document: RerankDocument | UnsetType = UNSET  # unless the body says `return_documents: false`


class Ranking(Struct, frozen=True, kw_only=True):
    """The documents, best first."""

    id: str
    model: str
    usage: PooledUsage
    results: list[RankedDocument]


class PairScore(Struct, frozen=True, kw_only=True):
    """The score of one pair of texts."""

    index: int
    object: Literal["score"] = "score"
    score: float


class PairScores(Struct, frozen=True, kw_only=True):
    """The scores of all pairs, in their order."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[PairScore]
    usage: PooledUsage
