"""Lists unimplemented parameters of OpenAI and vLLM, each with the values that have no effect.

These values are accepted. Any other value is refused by name, since ignoring it would give a wrong answer.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gateway.errors import conflict, invalid


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
ANY_VALUE = NeutralValues(lambda value: True, {})
"""Other servers' caches, slots and sessions: no value changes an answer here."""


class Alias(NamedTuple):
    """Baton's name of a parameter that another server calls otherwise."""

    name: str
    unset: int | None = None  # the value that means the same as an absent parameter


ALIASES: Mapping[str, Alias] = {
    "repeat_penalty": Alias("repetition_penalty"),  # llama.cpp's and Ollama's names
    "n_predict": Alias("max_tokens", unset=-1),
    "num_predict": Alias("max_tokens", unset=-1),
}
"""Other servers' names of parameters of chats and completions."""
CHAT_ALIASES: Mapping[str, Alias] = {**ALIASES, "think": Alias("enable_thinking")}


_COMMON_PARAMETERS: dict[str, NeutralValues] = {
    "length_penalty": only(1),
    "use_beam_search": only(False),
    "spaces_between_special_tokens": only(True, False),  # has a meaning only for other tokenizers
    "logits_processors": ONLY_EMPTY,
    "kv_transfer_params": ONLY_NULL,  # where KV goes is decided by the server alone
    "request_id": ONLY_NULL,
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
    "prompt_cache_retention": only("in-memory", "24h"),  # the cache has one fixed size
    "keep_alive": ANY_VALUE,
    "cache_prompt": ANY_VALUE,
    "session_id": ANY_VALUE,
    "id_slot": ANY_VALUE,
    "num_ctx": ANY_VALUE,  # the context is the server's
    "plugins": ONLY_EMPTY,
    "thinking_token_budget": ONLY_NULL,
    "logprob_token_ids": ONLY_NULL,
    "min_characters": only(0),
    "typical_p": only(1),  # samplers of other servers, off
    "tfs_z": only(1),
    "mirostat": only(0),
    "dry_multiplier": only(0),
    "xtc_probability": only(0),
}

CHAT_PARAMETERS: Mapping[str, NeutralValues] = {
    **_COMMON_PARAMETERS,
    "modalities": only(["text"]),
    "audio": ONLY_NULL,
    "prediction": ONLY_NULL,
    "web_search_options": ONLY_NULL,
    "chat_template": ONLY_NULL,  # a template is code
    "documents": ONLY_EMPTY,
    "add_special_tokens": only(False),
    "separate_reasoning": only(True),
    "stream_reasoning": only(True),
}

COMPLETION_PARAMETERS: Mapping[str, NeutralValues] = {
    **_COMMON_PARAMETERS,
    "include_reasoning": only(True, False),  # a completion's reasoning is part of its text
    "add_special_tokens": only(True),
    "prompt_embeds": ONLY_NULL,
}


def renamed(given: Mapping[str, Any], aliases: Mapping[str, Alias]) -> Mapping[str, Any]:
    """Returns `given` with this server's names. Raises `APIError` if two names of a parameter have different values."""
    if aliases.keys().isdisjoint(given):
        return given
    fields = {name: value for name, value in given.items() if name not in aliases}
    for name, (own, unset) in aliases.items():
        value = given.get(name)
        if value is None or (unset is not None and value == unset):
            continue
        if fields.get(own) not in (None, value):
            raise conflict(f"{name}: {own} differs from it; give one of them", name)
        fields[own] = value
    return fields


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
