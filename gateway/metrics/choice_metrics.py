"""Histograms of the lengths of requests and answers, with vLLM's names and bounds."""

from collections.abc import Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Histogram

_TOKEN_BUCKETS = tuple(digit * 10**power for power in range(6) for digit in (1, 2, 5))  # 1, 2, 5, 10 … 500,000
_CHOICE_BUCKETS = (1, 2, 5, 10, 20)
# In seconds: vLLM's bounds, the least of which is far above a small model's times.
_SECOND_BUCKETS = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)


class ChoiceShape(NamedTuple):
    """Lengths of a finished choice."""

    prompt_tokens: int
    output_tokens: int
    max_tokens: int  # its limit
    decode_seconds: float  # from its first token to its last


class ChoiceMetrics:
    """The histograms. As in vLLM, each finished choice counts, and `n` once per request."""

    def __init__(self, model: str, registry: CollectorRegistry) -> None:
        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, ["model_name"], buckets=buckets, registry=registry).labels(model)

        self._prompt = histogram("vllm:request_prompt_tokens", "Prompt tokens of a choice", _TOKEN_BUCKETS)
        self._output = histogram("vllm:request_generation_tokens", "Output tokens of a choice", _TOKEN_BUCKETS)
        self._limit = histogram("vllm:request_params_max_tokens", "Limit of a choice's output tokens", _TOKEN_BUCKETS)
        self._longest = histogram(
            "vllm:request_max_num_generation_tokens", "Output tokens of a request's longest choice", _TOKEN_BUCKETS
        )
        self._n = histogram("vllm:request_params_n", "Choices that a request asked for", _CHOICE_BUCKETS)
        self._decode = histogram("vllm:request_decode_time_seconds", "First to last output token", _SECOND_BUCKETS)

    def request(self, choices: Sequence[ChoiceShape]) -> None:
        """Counts a request whose choices have all finished."""
        self._n.observe(len(choices))
        self._longest.observe(max(choice.output_tokens for choice in choices))

    def finished(self, shape: ChoiceShape) -> None:
        self._prompt.observe(shape.prompt_tokens)
        self._output.observe(shape.output_tokens)
        self._limit.observe(shape.max_tokens)
        self._decode.observe(shape.decode_seconds)
