"""Lists parameters of OpenAI and vLLM that are not implemented, each with the values at which it changes nothing.

Such a value is accepted; any other is refused by name, because an answer that ignores it would be a wrong answer.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gateway.errors import invalid


class Neutral(NamedTuple):
    """Tells the values at which a parameter changes nothing: by a test, and by a JSON schema that says the same."""

    accepts: Callable[[Any], bool]
    schema: Mapping[str, Any]


def only(*values: Any) -> Neutral:
    """Returns what accepts only these values. `1` and `true` are different things here, `1` and `1.0` are not."""

    def accepts(value: Any) -> bool:
        return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in values)

    return Neutral(accepts, {"enum": [*values, None]})


EMPTY = only("", [], {})
NOTHING = only()


_COMMON: dict[str, Neutral] = {
    "presence_penalty": only(0),
    "frequency_penalty": only(0),
    "repetition_penalty": only(1),
    "length_penalty": only(1),
    "logit_bias": EMPTY,
    "use_beam_search": only(False),
    "min_tokens": only(0),
    "stop_token_ids": EMPTY,
    "bad_words": EMPTY,
    "allowed_token_ids": NOTHING,
    "skip_special_tokens": only(True),
    "spaces_between_special_tokens": only(True, False),  # only ever meant something to other tokenizers
    "include_stop_str_in_output": only(False),
    "truncate_prompt_tokens": NOTHING,
    "prompt_logprobs": NOTHING,
    "return_token_ids": only(False),
    "return_tokens_as_token_ids": only(False),
    "response_format": only({"type": "text"}),
    "structured_outputs": EMPTY,
    "guided_json": NOTHING,
    "guided_regex": NOTHING,
    "guided_choice": NOTHING,
    "guided_grammar": NOTHING,
    "logits_processors": EMPTY,
    "kv_transfer_params": NOTHING,  # where KV goes is decided by the server alone
    "request_id": NOTHING,
}

CHAT: Mapping[str, Neutral] = {
    **_COMMON,
    "logprobs": only(False),
    "top_logprobs": only(0),
    "tools": EMPTY,
    "tool_choice": only("none", "auto"),  # without tools
    "parallel_tool_calls": only(True, False),
    "functions": EMPTY,
    "function_call": only("none", "auto"),
    "modalities": only(["text"]),
    "audio": NOTHING,
    "prediction": NOTHING,
    "reasoning_effort": NOTHING,
    "verbosity": only("medium"),
    "web_search_options": NOTHING,
    "chat_template": NOTHING,  # a template is code
    "chat_template_kwargs": EMPTY,
    "documents": EMPTY,
    "add_generation_prompt": only(True),
    "continue_final_message": only(False),
    "add_special_tokens": only(False),
    "echo": only(False),
}

COMPLETION: Mapping[str, Neutral] = {
    **_COMMON,
    "logprobs": NOTHING,  # even 0 asks for the chosen token's
    "echo": only(False),
    "suffix": EMPTY,
    "add_special_tokens": only(True),
    "prompt_embeds": NOTHING,
}


def implemented(given: Mapping[str, Any], neutral: Mapping[str, Neutral]) -> dict[str, Any]:
    """Returns `given` without the neutral values of listed parameters; null is neutral. Raises `APIError` on others."""
    rest = {}
    for name, value in given.items():
        accepts = neutral.get(name)
        if accepts is None:
            rest[name] = value
        elif value is not None and not accepts.accepts(value):
            message = f"{name} is not supported with this value: it would change the answer"
            raise invalid(message, name, "unsupported_parameter")
    return rest
