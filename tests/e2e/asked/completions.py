"""Lists completions as the tests of vLLM and SGLang ask for them."""

import re

from tests.e2e.asked.asked import Asked
from tests.e2e.asked.bodies import STORY, USAGE, completion

COMPLETIONS: list[Asked] = [
    completion("token ids", lambda got: got.usage["prompt_tokens"] == 5, [0, 0, 0, 0, 0]),
    completion(
        "five alternatives", lambda got: len(got.choices[0]["logprobs"]["top_logprobs"][0]) in (5, 6), logprobs=5
    ),
    completion(
        "prompt's scores",
        lambda got: all(one["prompt_logprobs"][0] is None and len(one["prompt_logprobs"]) > 1 for one in got.choices),
        [STORY, "A fox"],
        prompt_logprobs=1,
    ),
    completion(
        "a stream",
        lambda got: sum(one["choices"][0]["finish_reason"] is not None for one in got.events) == 1,
        stream=True,
    ),
    completion(
        "three samples", lambda got: len(set(got.texts)) == 3, n=3, temperature=1.0, seed=42, logprobs=0, max_tokens=20
    ),
    completion(
        "empty stream options",
        lambda got: all(one.get("usage") is None for one in got.events),
        stream=True,
        stream_options={},
    ),
    completion(
        "two equal prompts of ids, streamed", lambda got: got.texts[0] == got.texts[1], [[5, 6, 7]] * 2, stream=True
    ),
    completion(
        "two prompts twice, echoed and streamed",
        lambda got: all(one.startswith(STORY) for one in got.texts),
        [STORY] * 2,
        n=2,
        echo=True,
        logprobs=5,
        stream=True,
        stream_options=USAGE,
    ),
    completion(
        "echo with no tokens",
        lambda got: got.texts == [STORY] and got.choices[0]["finish_reason"] == "length",
        echo=True,
        max_tokens=0,
        logprobs=1,
    ),
    completion(
        "a grammar",
        lambda got: re.fullmatch(r"SELECT a FROM [tu]", got.texts[0]),
        max_tokens=30,
        structured_outputs={"grammar": 'root ::= "SELECT a FROM " table\ntable ::= "t" | "u"'},
    ),
    completion(
        "tokens as ids",
        lambda got: (
            [int(one.removeprefix("token_id:")) for one in got.choices[0]["logprobs"]["tokens"]][-6:]
            == got.choices[0]["token_ids"]
        ),
        echo=True,
        logprobs=1,
        prompt_logprobs=1,
        return_token_ids=True,
        return_tokens_as_token_ids=True,
    ),
    completion("best of three", lambda got: len(got.choices) == 2, n=2, best_of=3, temperature=1.0),
    completion("no limit of tokens", max_tokens=None),
    completion("bad words", lambda got: " a " not in got.texts[0], bad_words=["a"]),
    completion(
        "biases", lambda got: got.choices[0]["token_ids"] == [5] * 6, logit_bias={"5": 100.0}, return_token_ids=True
    ),
    completion("a priority", priority=1),
]
