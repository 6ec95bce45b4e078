"""Lists what load tools send: vLLM's bench serve, GenAI-Perf, AIPerf, guidellm, inference-perf."""

from tests.e2e.asked.asked import Asked, counts_up, ends_with_usage
from tests.e2e.asked.bodies import EACH, USAGE, chat, completion

LOAD_TOOLS: list[Asked] = [
    completion(
        "bench serve",
        lambda got: ends_with_usage(got) and got.usage["completion_tokens"] == 6,
        stream=True,
        stream_options=USAGE,
        repetition_penalty=1.0,
        logprobs=None,
        ignore_eos=True,
    ),
    chat(
        "bench serve, chat",
        ends_with_usage,
        [{"role": "user", "content": [{"type": "text", "text": "Hello!"}]}],
        max_completion_tokens=8,
        stream=True,
        stream_options=USAGE,
        ignore_eos=True,
        without=("max_tokens",),
    ),
    chat("load tool, usage in each chunk", counts_up, stream=True, stream_options=EACH),
    completion(
        "load tool, usage in each chunk of a completion", counts_up, stream=True, stream_options=EACH, min_tokens=6
    ),
    completion(
        "continuous usage without usage",
        lambda got: all("usage" in one for one in got.events),
        stream=True,
        stream_options={"continuous_usage_stats": True},
    ),
    chat(
        "genai-perf",
        lambda got: got.usage["completion_tokens"] == 8,
        stream=True,
        stream_options=USAGE,
        n=1,
        min_tokens=8,
        ignore_eos=True,
    ),
    completion(
        "guidellm",
        lambda got: got.usage["completion_tokens"] == 6,
        stop=None,
        ignore_eos=True,
        stream=True,
        stream_options=EACH,
    ),
]
