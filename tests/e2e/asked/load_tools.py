"""Lists what load tools send: vLLM's bench serve, GenAI-Perf, AIPerf, guidellm, inference-perf."""

from tests.e2e.asked.asked import Asked, counts_up, ends_with_usage
from tests.e2e.asked.bodies import EACH, STORY, USAGE, chat, completion

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
    completion(
        "bench serve, sampling options",
        temperature=0.7,
        top_p=0.9,
        top_k=20,
        min_p=0.0,
        frequency_penalty=0.1,
        presence_penalty=0.1,
        repetition_penalty=1.05,
        stream=True,
        stream_options=USAGE,
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
    completion("genai-perf, a list of one prompt", lambda got: len(got.choices) == 1, [STORY]),
    completion(
        "guidellm",
        lambda got: got.usage["completion_tokens"] == 6,
        stop=None,
        ignore_eos=True,
        stream=True,
        stream_options=EACH,
    ),
    chat("inference-perf", lambda got: got.texts[0] != "", user="load", seed=1),
]
