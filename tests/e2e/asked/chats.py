"""Lists chats as the tests of vLLM and SGLang ask for them."""

import re

from tests.e2e.asked.asked import Asked
from tests.e2e.asked.bodies import CACHED, PERSON, chat, is_person

CHATS: list[Asked] = [
    chat(
        "some log-probabilities",
        lambda got: len(got.choices[0]["logprobs"]["content"][0]["top_logprobs"]) == 5,
        logprobs=True,
        top_logprobs=5,
    ),
    chat(
        "no log-probabilities, alternatives zero",
        lambda got: got.choices[0]["logprobs"] is None,
        logprobs=False,
        top_logprobs=None,
    ),
    chat("two samples, streamed", lambda got: all(got.texts), n=2, temperature=0.7, stream=True),
    chat(
        "a choice",
        lambda got: got.texts[0] in ("Python", "Rust"),
        max_tokens=20,
        structured_outputs={"choice": ["Python", "Rust"]},
    ),
    chat(
        "guided choice, with log-probabilities",
        lambda got: min(one["logprob"] for one in got.choices[0]["logprobs"]["content"][0]["top_logprobs"]) >= -9999,
        max_tokens=20,
        logprobs=True,
        top_logprobs=5,
        guided_choice=["Python", "Rust"],
    ),
    chat(
        "guided regex",
        lambda got: re.fullmatch(r"\d{1,3}(\.\d{1,3}){3}", got.texts[0]),
        max_tokens=20,
        guided_regex=r"\d{1,3}(\.\d{1,3}){3}",
    ),
    chat("guided JSON", is_person, max_tokens=60, guided_json=PERSON),
    chat("a JSON object", lambda got: got.texts[0].startswith("{"), response_format={"type": "json_object"}),
    chat("extra fields of a message", messages=[{"role": "user", "content": "Hello!", "extra_field": "0"}]),
    chat("a part of a message", lambda got: got.texts[0] != "", [{"role": "user", "content": [CACHED]}]),
    chat("nothing but defaults", stop=["."], without=("max_tokens", "temperature")),
    chat(
        "limit of another name",
        lambda got: got.usage["completion_tokens"] == 3,
        max_completion_tokens=3,
        ignore_eos=True,
        without=("max_tokens",),
    ),
    chat("no thinking", chat_template_kwargs={"enable_thinking": False}),
    chat(
        "token ids of a chat",
        lambda got: (
            got.whole["prompt_token_ids"] and len(got.choices[0]["token_ids"]) == got.usage["completion_tokens"]
        ),
        return_token_ids=True,
    ),
]
