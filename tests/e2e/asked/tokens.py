"""Lists what lm-eval sends, and clients that have no tokenizer of their own."""

from tests.e2e.asked.asked import Asked, anything
from tests.e2e.asked.bodies import ASK, MODEL, TOOL, chat, completion

TOKENS: list[Asked] = [
    completion(
        "lm-eval, loglikelihood",
        lambda got: got.choices[0]["logprobs"]["token_logprobs"][0] is None,
        [[5, 6, 7, 8]],
        max_tokens=1,
        logprobs=1,
        seed=1234,
        echo=True,
    ),
    completion(
        "lm-eval, rolling",
        lambda got: len(got.choices) == 2,
        [[5, 6, 7, 8], [9, 10]],
        max_tokens=1,
        logprobs=1,
        seed=1234,
        echo=True,
    ),
    completion(
        "lm-eval, generate_until", lambda got: "," not in got.texts[0], [[5, 6, 7, 8]], stop=["<|end|>", ","], seed=1234
    ),
    chat(
        "lm-eval, chat", anything, [{"role": "user", "content": "Hello!", "type": "text"}], stop=["<|end|>"], seed=1234
    ),
    Asked(
        "lm-eval, tokenizer",
        "/tokenize",
        {"prompt": "test", "add_special_tokens": False},
        lambda got: got.whole["count"] == len(got.whole["tokens"]),
    ),
    Asked(
        "ids of a chat",
        "/tokenize",
        {
            "model": MODEL,
            "messages": ASK,
            "tools": [TOOL],
            "add_generation_prompt": True,
            "continue_final_message": False,
            "add_special_tokens": False,
        },
        lambda got: got.whole["max_model_len"],
    ),
]
