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
    "length_penalty": _only(1),
    "use_beam_search": _only(False),
    "spaces_between_special_tokens": _only(True, False),  # only ever meant something to other tokenizers
    "truncate_prompt_tokens": _nothing,
    "logits_processors": _empty,
    "kv_transfer_params": _nothing,  # where KV goes is decided by the server alone
    "request_id": _nothing,
    "include_reasoning": _only(True),
    "guided_decoding_backend": _nothing,
    "guided_whitespace_pattern": _nothing,
    "vllm_xargs": _empty,
    "prompt_cache_retention": _only("in-memory", "24h"),  # a cache is as large as it is
}

CHAT: Mapping[str, Neutral] = {
    **_COMMON,
    "modalities": _only(["text"]),
    "audio": _nothing,
    "prediction": _nothing,
    "verbosity": _only("medium"),
    "web_search_options": _nothing,
    "chat_template": _nothing,  # a template is code
    "documents": _empty,
    "add_generation_prompt": _only(True),
    "continue_final_message": _only(False),
    "add_special_tokens": _only(False),
    "echo": _only(False),
}

COMPLETION: Mapping[str, Neutral] = {
    **_COMMON,
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
