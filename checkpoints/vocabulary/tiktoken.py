"""Reads tiktoken.model, whose lines are a token in base64 and its rank.

The pattern that splits texts is in the model's own code, which is not run; known patterns are listed here by model
type. Special tokens are listed in tokenizer_config.json; other ids up to the vocabulary's size are reserved tokens.
"""

import base64
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from checkpoints.vocabulary.ranked import ranked_tokenizer, special_token
from checkpoints.vocabulary.settings import listed_tokens

CONTRACTIONS_REGEX = r"'s|'t|'re|'ve|'m|'ll|'d"
UPPER_CASE_REGEX = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
LOWER_CASE_REGEX = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
MOONSHOT_REGEX = "|".join(
    (
        r"[\p{Han}]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER_CASE_REGEX}*{LOWER_CASE_REGEX}+(?i:{CONTRACTIONS_REGEX})?",
        rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER_CASE_REGEX}+{LOWER_CASE_REGEX}*(?i:{CONTRACTIONS_REGEX})?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
SPLIT_REGEX_BY_MODEL_TYPE = {"kimi_k2": MOONSHOT_REGEX, "deepseek_v3": MOONSHOT_REGEX}
"""Kimi K2, and Moonlight, which has DeepSeek's architecture."""


def tiktoken_tokenizer(path: Path, config: dict[str, Any], settings: dict[str, Any]) -> Tokenizer:
    """Returns the tokenizer in `path`, given the model's config.json and tokenizer settings.

    Raises `ValueError` for a model type whose pattern is unknown, and for a file of another format.
    """
    kind = str(config.get("model_type"))
    if kind not in SPLIT_REGEX_BY_MODEL_TYPE:
        known = ", ".join(SPLIT_REGEX_BY_MODEL_TYPE)
        raise ValueError(
            f"how models of type {kind} cut texts is in code of their own, which is not run; known: {known}"
        )
    tokens = []
    for rank, line in enumerate(path.read_bytes().splitlines()):
        token, _, number = line.partition(b" ")
        if int(number) != rank:
            raise ValueError(f"line {rank + 1} has rank {int(number)}")
        tokens.append(base64.b64decode(token, validate=True))
    listed = listed_tokens(settings)
    ids = range(len(tokens), max([int(config.get("vocab_size") or 0), *(id + 1 for id in listed)]))
    special = {id: listed.get(id) or special_token(f"<|reserved_token_{id}|>") for id in ids}
    return ranked_tokenizer(tokens, SPLIT_REGEX_BY_MODEL_TYPE[kind], 0, special)
