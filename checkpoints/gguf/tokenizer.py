"""Makes Hugging Face's tokenizer files from a GGUF file's metadata."""

import re
from typing import Any

from checkpoints.gguf.byte_pairs import byte_pairs
from checkpoints.gguf.config import Metadata
from checkpoints.gguf.sentencepiece import adds_space_prefix, sentencepiece
from checkpoints.vocabulary.words import CONTROL_TOKEN, UNKNOWN_TOKEN, USER_DEFINED_TOKEN, Vocabulary
from contracts.errors import ModelError

KEY_PREFIX = "tokenizer.ggml."
SPECIAL_TOKEN_KEYS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "sep_token": "seperator_token_id",  # llama.cpp's own spelling
    "pad_token": "padding_token_id",
    "mask_token": "mask_token_id",
}
"""Special tokens by Hugging Face's name, with GGUF's key."""
END_TOKEN_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
END_TEXTS = frozenset(
    (
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|eom_id|>",
        "<|end_of_text|>",
        "<EOT>",
        "_<EOT>",
        "<end_of_utterance>",
    )
)
"""Special tokens that end an answer, as in llama.cpp, since many files name only one end token."""
HARMONY_END_TEXTS = frozenset(("<|return|>", "<|call|>"))
"""Special tokens that end gpt-oss' answers, in which `<|end|>` ends a part of one."""
PHI3_NAME_REGEX = re.compile(r"phi[-_ ]?3", re.IGNORECASE)
PHI3_SPACE_KEEPING_TOKENS = frozenset(("<unk>", "<s>", "<|endoftext|>"))
"""Phi-3's special tokens that do not swallow the white space after them."""
SAMPLING_KEYS = {"temperature": "temp", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p"}
TEMPLATE_KEY_REGEX = re.compile(r"tokenizer\.chat_template\.([A-Za-z0-9_-]{1,64})")
TOKENIZER_KINDS = {"gpt2": byte_pairs, "llama": sentencepiece}


def tokenizer_of(metadata: Metadata) -> dict[str, Any]:
    """Returns the tokenizer.json. Raises `ModelError` for an unsupported kind and for missing metadata."""
    kind = metadata.required(f"{KEY_PREFIX}model", str)
    if kind not in TOKENIZER_KINDS:
        known = ", ".join(TOKENIZER_KINDS)
        raise ModelError(f"{metadata.name}: the tokenizer {kind} is not supported; supported: {known}")
    vocabulary = _vocabulary(metadata)
    parts = TOKENIZER_KINDS[kind](metadata, vocabulary)
    begins = metadata.get(f"{KEY_PREFIX}add_bos_token", parts.adds_bos)
    ends = metadata.get(f"{KEY_PREFIX}add_eos_token", False)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _added(metadata, vocabulary, token)
            for token in vocabulary.of_kinds(UNKNOWN_TOKEN, CONTROL_TOKEN, USER_DEFINED_TOKEN)
        ],
        "normalizer": parts.normalizer,
        "pre_tokenizer": parts.pre_tokenizer,
        "post_processor": _around(metadata, vocabulary, begins, ends),
        "decoder": parts.decoder,
        "model": parts.model,
    }


def tokenizer_config_of(metadata: Metadata) -> dict[str, Any]:
    """Returns the tokenizer_config.json, which names the special tokens."""
    words = _vocabulary(metadata).words
    named = {name: _named(metadata, words, key) for name, key in SPECIAL_TOKEN_KEYS.items()}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata.of_family("context_length"),
    } | {name: word for name, word in named.items() if word is not None}


def generation_config_of(metadata: Metadata) -> dict[str, Any]:
    """Returns the generation_config.json: end-of-answer tokens, and the recommended sampling."""
    vocabulary = _vocabulary(metadata)
    ends = {metadata.get(f"{KEY_PREFIX}{key}") for key in END_TOKEN_KEYS} - {None}
    special = vocabulary.of_kinds(CONTROL_TOKEN, USER_DEFINED_TOKEN)
    spelled = {vocabulary.words[token]: token for token in special}
    texts = END_TEXTS - {"<|end|>"} if spelled.keys() >= HARMONY_END_TEXTS else END_TEXTS
    ends |= {token for text, token in spelled.items() if text in texts}
    sampling = {name: metadata.get(f"general.sampling.{key}") for name, key in SAMPLING_KEYS.items()}
    return {"eos_token_id": sorted(ends)} | {name: value for name, value in sampling.items() if value is not None}


def templates_of(metadata: Metadata) -> dict[str, str]:
    """Returns the chat templates by name; the main template is `default`."""
    found = {"default": metadata.get("tokenizer.chat_template")}
    for key, value in metadata.header.metadata.items():
        if match := TEMPLATE_KEY_REGEX.fullmatch(key):
            found[match[1]] = value
    return {name: source for name, source in found.items() if isinstance(source, str)}


def _vocabulary(metadata: Metadata) -> Vocabulary:
    words = metadata.required(f"{KEY_PREFIX}tokens", list)
    kinds = metadata.get(f"{KEY_PREFIX}token_type") or [1] * len(words)
    if len(kinds) != len(words):
        raise ModelError(f"{metadata.name}: {len(words)} tokens have {len(kinds)} types")
    return Vocabulary(words, kinds)


def _named(metadata: Metadata, words: list[str], key: str) -> str | None:
    token = metadata.get(f"{KEY_PREFIX}{key}")
    if token is None:
        return None
    if not isinstance(token, int) or not 0 <= token < len(words):
        raise ModelError(f"{metadata.name}: {KEY_PREFIX}{key} is {token}, but there are {len(words)} tokens")
    return words[token]


def _added(metadata: Metadata, vocabulary: Vocabulary, token: int) -> dict[str, Any]:
    """Returns the entry of a token that is found in texts before any merging.

    Gemma's runs of spaces are matched after spaces became marks, so that a mark in a text counts as a space too.
    """
    word, special = vocabulary.words[token], vocabulary.kinds[token] != USER_DEFINED_TOKEN
    marks = metadata.get(f"{KEY_PREFIX}model") == "llama" and not adds_space_prefix(metadata)
    marked = marks and not special and not word.strip(" ")
    strips = word not in PHI3_SPACE_KEEPING_TOKENS and _strips_spaces(metadata)
    return {
        "id": token,
        "content": word,
        "special": special,
        "single_word": False,
        "lstrip": False,
        "rstrip": strips,
        "normalized": marked,
    }


def _strips_spaces(metadata: Metadata) -> bool:
    """Returns whether special tokens swallow the white space after them: only Phi-3's, known by the model's name."""
    names = (metadata.get(f"general.{key}") for key in ("name", "basename"))
    return any(isinstance(name, str) and PHI3_NAME_REGEX.search(name) for name in names)


def _around(metadata: Metadata, vocabulary: Vocabulary, begins: bool, ends: bool) -> dict[str, Any] | None:
    """Returns the post-processor that puts BOS and EOS around a text, or None."""
    first = _named(metadata, vocabulary.words, "bos_token_id") if begins else None
    last = _named(metadata, vocabulary.words, "eos_token_id") if ends else None
    if first is None and last is None:
        return None

    def sequence(name: str, type: int) -> list[dict[str, Any]]:
        text: list[dict[str, Any]] = [{"Sequence": {"id": name, "type_id": type}}]
        before = [{"SpecialToken": {"id": first, "type_id": type}}] if first is not None else []
        after = [{"SpecialToken": {"id": last, "type_id": type}}] if last is not None else []
        return [*before, *text, *after]

    ids = {word: vocabulary.words.index(word) for word in (first, last) if word is not None}
    tokens = {word: {"id": word, "ids": [token], "tokens": [word]} for word, token in ids.items()}
    return {
        "type": "TemplateProcessing",
        "single": sequence("A", 0),
        "pair": sequence("A", 0) + sequence("B", 1),
        "special_tokens": tokens,
    }
