"""Lists chats as the tests of vLLM and SGLang ask for them."""

import re

from tests.e2e.asked.asked import Asked
from tests.e2e.asked.bodies import CACHED, HELLO, PERSON, USAGE, chat, is_person

CHATS: list[Asked] = [
    chat(
        "some log-probabilities",
        lambda got: len(got.choices[0]["logprobs"]["content"][0]["top_logprobs"]) == 5,
        logprobs=True,
        top_logprobs=5,
    ),
    chat(
        "none of the alternatives",
        lambda got: got.choices[0]["logprobs"]["content"][0]["top_logprobs"] == [],
        logprobs=True,
        top_logprobs=0,
    ),
    chat("too many", status=400, param="top_logprobs", logprobs=True, top_logprobs=21, stream=True),
    chat(
        "no log-probabilities, alternatives zero",
        lambda got: got.choices[0]["logprobs"] is None,
        logprobs=False,
        top_logprobs=None,
    ),
    chat(
        "log-probabilities, streamed",
        lambda got: all(one["choices"][0]["logprobs"]["content"] for one in got.events[1:-2]),
        stream=True,
        stream_options=USAGE,
        logprobs=True,
        top_logprobs=5,
    ),
    chat("prompt's scores of a chat", lambda got: got.whole["prompt_logprobs"][1], prompt_logprobs=2),
    chat(
        "three samples of a chat", lambda got: [one["index"] for one in got.choices] == [0, 1, 2], n=3, temperature=0.7
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
    chat("a regex that is no text", status=400, structured_outputs={"regex": {"1": "Python"}}),
    chat("a JSON object", lambda got: got.texts[0].startswith("{"), response_format={"type": "json_object"}),
    chat("text", response_format={"type": "text"}),
    chat("extra fields of a message", messages=[{"role": "user", "content": "Hello!", "extra_field": "0"}]),
    chat("a part of a message", lambda got: got.texts[0] != "", [{"role": "user", "content": [CACHED]}]),
    chat("a role of one's own", status=400, messages=[{"role": "my-custom-role", "content": "Hello!"}]),
    chat("a seed too long", status=400, param="seed", seed=1 << 63),
    chat("no messages", status=400, param="messages", messages=[]),
    chat(
        "an image",
        status=400,
        messages=[
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}
        ],
    ),
    chat(
        "an answer's beginning",
        messages=[*HELLO, {"role": "assistant", "content": "I"}],
        status=400,
        param="continue_final_message",
        continue_final_message=True,
    ),
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
    chat(
        "token ids of a chat, streamed",
        lambda got: (
            "prompt_token_ids" in got.events[0] and not any("prompt_token_ids" in one for one in got.events[1:])
        ),
        stream=True,
        return_token_ids=True,
    ),
    chat(
        "a chat too long",
        lambda got: "maximum context length" in got.whole["error"]["message"],
        [{"role": "user", "content": "fox " * 4000}],
        status=400,
    ),
    chat("another model", status=404, param="model", model="gpt-4o"),
]
