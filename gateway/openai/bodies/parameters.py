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
    "length_penalty": only(1),
    "use_beam_search": only(False),
    "spaces_between_special_tokens": only(True, False),  # only ever meant something to other tokenizers
    "truncate_prompt_tokens": NOTHING,
    "logits_processors": EMPTY,
    "kv_transfer_params": NOTHING,  # where KV goes is decided by the server alone
    "request_id": NOTHING,
    "include_reasoning": only(True),
    "guided_decoding_backend": only("auto", "xgrammar", "guidance", "outlines", "lm-format-enforcer"),  # one form
    "guided_whitespace_pattern": NOTHING,
    "vllm_xargs": EMPTY,
    "structural_tag": NOTHING,
    "early_stopping": only(False),
    "mm_processor_kwargs": EMPTY,
    "media_io_kwargs": EMPTY,
    "lora_path": NOTHING,
    "regex": NOTHING,  # these three are SGLang's names of `structured_outputs`
    "ebnf": NOTHING,
    "json_schema": NOTHING,
    "prompt_cache_retention": only("in-memory", "24h"),  # a cache is as large as it is
}

CHAT: Mapping[str, Neutral] = {
    **_COMMON,
    "modalities": only(["text"]),
    "audio": NOTHING,
    "prediction": NOTHING,
    "verbosity": only("medium"),
    "web_search_options": NOTHING,
    "chat_template": NOTHING,  # a template is code
    "documents": EMPTY,
    "add_generation_prompt": only(True),
    "continue_final_message": only(False),
    "add_special_tokens": only(False),
    "echo": only(False),
    "separate_reasoning": only(True),
    "stream_reasoning": only(True),
}

COMPLETION: Mapping[str, Neutral] = {
    **_COMMON,
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
