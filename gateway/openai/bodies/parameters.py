"""Lists unimplemented parameters of OpenAI and vLLM, each with the values that have no effect.

These values are accepted. Any other value is refused by name, since ignoring it would give a wrong answer.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gateway.errors import invalid


class NeutralValues(NamedTuple):
    """The values of a parameter that have no effect, as a test and as an equivalent JSON schema."""

    accepts: Callable[[Any], bool]
    schema: Mapping[str, Any]


def only(*values: Any) -> NeutralValues:
    """Returns a test for exactly these values. `1` and `true` are different, `1` and `1.0` are equal."""

    def accepts(value: Any) -> bool:
        return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in values)

    return NeutralValues(accepts, {"enum": [*values, None]})


ONLY_EMPTY = only("", [], {})
ONLY_NULL = only()


_COMMON_PARAMETERS: dict[str, NeutralValues] = {
    "length_penalty": only(1),
    "use_beam_search": only(False),
    "spaces_between_special_tokens": only(True, False),  # has a meaning only for other tokenizers
    "truncate_prompt_tokens": ONLY_NULL,
    "logits_processors": ONLY_EMPTY,
    "kv_transfer_params": ONLY_NULL,  # where KV goes is decided by the server alone
    "request_id": ONLY_NULL,
    "include_reasoning": only(True),
    "guided_decoding_backend": only(
        "auto", "xgrammar", "guidance", "outlines", "lm-format-enforcer"
    ),  # all give the same form
    "guided_whitespace_pattern": ONLY_NULL,
    "vllm_xargs": ONLY_EMPTY,
    "structural_tag": ONLY_NULL,
    "early_stopping": only(False),
    "mm_processor_kwargs": ONLY_EMPTY,
    "media_io_kwargs": ONLY_EMPTY,
    "lora_path": ONLY_NULL,
    "regex": ONLY_NULL,  # these three are SGLang's names of `structured_outputs`
    "ebnf": ONLY_NULL,
    "json_schema": ONLY_NULL,
    "prompt_cache_retention": only("in-memory", "24h"),  # the cache has one fixed size
}

CHAT_PARAMETERS: Mapping[str, NeutralValues] = {
    **_COMMON_PARAMETERS,
    "modalities": only(["text"]),
    "audio": ONLY_NULL,
    "prediction": ONLY_NULL,
    "verbosity": only("medium"),
    "web_search_options": ONLY_NULL,
    "chat_template": ONLY_NULL,  # a template is code
    "documents": ONLY_EMPTY,
    "add_generation_prompt": only(True),
    "continue_final_message": only(False),
    "add_special_tokens": only(False),
    "echo": only(False),
    "separate_reasoning": only(True),
    "stream_reasoning": only(True),
}

COMPLETION_PARAMETERS: Mapping[str, NeutralValues] = {
    **_COMMON_PARAMETERS,
    "add_special_tokens": only(True),
    "prompt_embeds": ONLY_NULL,
}


def implemented(given: Mapping[str, Any], neutral: Mapping[str, NeutralValues]) -> dict[str, Any]:
    """Returns `given` without neutral values of listed parameters; null is neutral. Raises `APIError` on others."""
    rest = {}
    for name, value in given.items():
        accepts = neutral.get(name)
        if accepts is None:
            rest[name] = value
        elif value is not None and not accepts.accepts(value):
            message = f"{name} is not supported with this value: it would change the answer"
            raise invalid(message, name, "unsupported_parameter")
    return rest
