"""Lists what agent frameworks and chat pages send, with fields that change nothing."""

from typing import Any

from tests.e2e.asked.asked import Asked, anything, ends_with_usage
from tests.e2e.asked.bodies import FORM, HELLO, PERSON, SYSTEM, TOOL, USAGE, chat, completion, is_person

NULLS: dict[str, Any] = dict.fromkeys(
    [
        "n",
        "stop",
        "seed",
        "top_p",
        "logprobs",
        "top_logprobs",
        "stream",
        "stream_options",
        "logit_bias",
        "user",
        "metadata",
        "prediction",
        "audio",
        "modalities",
    ]
)

FRAMEWORKS: list[Asked] = [
    chat("LangChain, structured output", is_person, response_format=FORM, max_tokens=60, n=1, stream=False),
    chat(
        "LangChain, streamed",
        ends_with_usage,
        [SYSTEM, *HELLO],
        stream=True,
        stream_options=USAGE,
        n=1,
        temperature=0.7,
        max_completion_tokens=8,
        without=("max_tokens",),
    ),
    chat(
        "Open WebUI", anything, stream=True, stream_options=USAGE, metadata={"task": "title"}, chat_template_kwargs={}
    ),
    chat("Continue", stream=True, stop=["\n\n", "<|end|>"], top_p=1, presence_penalty=0, frequency_penalty=0),
    chat(
        "litellm",
        messages=[{"role": "developer", "content": "Be brief."}, *HELLO],
        user="u",
        metadata={"a": "b"},
        store=False,
        reasoning_effort=None,
        service_tier="auto",
    ),
    chat(
        "Agents SDK",
        anything,
        [SYSTEM, *HELLO],
        tools=[TOOL],
        parallel_tool_calls=False,
        store=True,
        stream=True,
        stream_options=USAGE,
        verbosity=None,
        reasoning_effort=None,
    ),
    chat(
        "vLLM's StructuredOutputsParams",
        is_person,
        max_tokens=60,
        structured_outputs={
            "json": PERSON,
            "regex": None,
            "choice": None,
            "grammar": None,
            "json_object": None,
            "disable_fallback": False,
            "disable_any_whitespace": False,
            "disable_additional_properties": False,
            "whitespace_pattern": None,
            "structural_tag": None,
        },
    ),
    chat("SGLang's defaults", separate_reasoning=True, stream_reasoning=True, regex=None, ebnf=None, lora_path=None),
    chat("null in every field", **NULLS),
    completion(
        "LangChain, a completion",
        n=1,
        best_of=1,
        logit_bias={},
        frequency_penalty=0,
        presence_penalty=0,
        top_p=1,
        suffix="",
        stream=True,
    ),
    chat("empty lists", stop=[], tools=[], bad_words=[], stop_token_ids=[], chat_template_kwargs={}),
    chat("text", response_format={"type": "text"}),
]
