"""Parses the bodies that ask for vectors and scores. Errors name the wrong field and the reason."""

from collections.abc import Mapping
from typing import Any, cast

from gateway.errors import conflict, invalid
from gateway.openai.bodies.parameters import Alias, renamed
from gateway.openai.bodies.parsing import converted, json_object
from gateway.openai.bodies.unknown_fields import REFUSED, UnknownFields
from gateway.pooled.schemas import MAX_TEXTS, EmbeddingsRequest, RerankRequest, ScoreRequest

RERANK_ALIASES: Mapping[str, Alias] = {"max_tokens_per_doc": Alias("truncate_prompt_tokens")}
"""Cohere's names of parameters."""
SCORE_ALIASES: Mapping[str, Alias] = {"queries": Alias("text_1"), "documents": Alias("text_2")}
"""Newer names of vLLM's parameters."""

Input = str | list[int]
"""A text, or the ids of its tokens."""


def parse_embeddings(body: bytes, unknown: UnknownFields = REFUSED) -> EmbeddingsRequest:
    """Returns the body of /v1/embeddings. Raises `APIError` if anything is wrong with it."""
    return converted(json_object(body), EmbeddingsRequest, unknown)


def parse_rerank(body: bytes, unknown: UnknownFields = REFUSED) -> RerankRequest:
    """Returns the body of /v1/rerank. Raises `APIError` if anything is wrong with it."""
    return converted(renamed(json_object(body), RERANK_ALIASES), RerankRequest, unknown)


def parse_score(body: bytes, unknown: UnknownFields = REFUSED) -> ScoreRequest:
    """Returns the body of /score. Raises `APIError` if anything is wrong with it."""
    return converted(renamed(json_object(body), SCORE_ALIASES), ScoreRequest, unknown)


def inputs_of(given: Any) -> list[Input]:
    """Returns the inputs of /v1/embeddings. Raises `APIError` for a mixed list, and for too many inputs."""
    if isinstance(given, str):
        return [given]
    kinds = set(map(type, given))
    if len(kinds) > 1:
        raise invalid("input: a list holds only texts, only token ids, or only lists of token ids", "input")
    inputs: list[Input] = [cast(list[int], given)] if int in kinds else given
    if len(inputs) > MAX_TEXTS:
        raise invalid(f"input: {len(inputs)} inputs are more than {MAX_TEXTS}", "input")
    return inputs


def pairs_of(body: ScoreRequest) -> list[tuple[str, str]]:
    """Returns the pairs of texts. Raises `APIError` unless there is one first text, or one for each second text."""
    first = [body.text_1] if isinstance(body.text_1, str) else body.text_1
    second = [body.text_2] if isinstance(body.text_2, str) else body.text_2
    if len(first) == 1:
        first = first * len(second)
    if len(first) != len(second):
        raise conflict(f"text_1: {len(first)} texts are neither 1 nor as many as the {len(second)} of text_2", "text_1")
    return list(zip(first, second, strict=True))
