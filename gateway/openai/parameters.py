"""Lists parameters of OpenAI and vLLM that are not implemented, each with the values at which it changes nothing.

Such a value is accepted; any other is refused by name, because an answer that ignores it would be a wrong answer.
"""

from collections.abc import Callable, Mapping
from typing import Any

from gateway.errors import invalid

Neutral = Callable[[Any], bool]


def _only(*values: Any) -> Neutral:
    """Accepts only these values. `1` and `true` are different things here, `1` and `1.0` are not."""
    return lambda value: any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in values)


def _empty(value: Any) -> bool:
    return value in ("", [], {}) and not isinstance(value, bool)


def _nothing(value: Any) -> bool:
    return False


_COMMON: dict[str, Neutral] = {
    "presence_penalty": _only(0),
    "frequency_penalty": _only(0),
    "repetition_penalty": _only(1),
    "length_penalty": _only(1),
    "logit_bias": _empty,
    "use_beam_search": _only(False),
    "min_tokens": _only(0),
    "stop_token_ids": _empty,
    "bad_words": _empty,
    "allowed_token_ids": _nothing,
    "skip_special_tokens": _only(True),
    "spaces_between_special_tokens": _only(True, False),  # only ever meant something to other tokenizers
    "include_stop_str_in_output": _only(False),
    "truncate_prompt_tokens": _nothing,
    "prompt_logprobs": _nothing,
    "return_token_ids": _only(False),
    "return_tokens_as_token_ids": _only(False),
    "response_format": _only({"type": "text"}),
    "structured_outputs": _empty,
    "guided_json": _nothing,
    "guided_regex": _nothing,
    "guided_choice": _nothing,
    "guided_grammar": _nothing,
    "logits_processors": _empty,
    "kv_transfer_params": _nothing,  # where KV goes is decided by the server alone
    "request_id": _nothing,
}

CHAT: Mapping[str, Neutral] = {
    **_COMMON,
    "logprobs": _only(False),
    "top_logprobs": _only(0),
    "tools": _empty,
    "tool_choice": _only("none", "auto"),  # without tools
    "parallel_tool_calls": _only(True, False),
    "functions": _empty,
    "function_call": _only("none", "auto"),
    "modalities": _only(["text"]),
    "audio": _nothing,
    "prediction": _nothing,
    "reasoning_effort": _nothing,
    "verbosity": _only("medium"),
    "web_search_options": _nothing,
    "chat_template": _nothing,  # a template is code
    "chat_template_kwargs": _empty,
    "documents": _empty,
    "add_generation_prompt": _only(True),
    "continue_final_message": _only(False),
    "add_special_tokens": _only(False),
    "echo": _only(False),
}

COMPLETION: Mapping[str, Neutral] = {
    **_COMMON,
    "logprobs": _nothing,  # even 0 asks for the chosen token's
    "echo": _only(False),
    "suffix": _empty,
    "add_special_tokens": _only(True),
    "prompt_embeds": _nothing,
}


def implemented(given: Mapping[str, Any], neutral: Mapping[str, Neutral]) -> dict[str, Any]:
    """Returns `given` without the neutral values of listed parameters; null is neutral. Raises `APIError` on others."""
    rest = {}
    for name, value in given.items():
        accepts = neutral.get(name)
        if accepts is None:
            rest[name] = value
        elif value is not None and not accepts(value):
            message = f"{name} is not supported with this value: it would change the answer"
            raise invalid(message, name, "unsupported_parameter")
    return rest
