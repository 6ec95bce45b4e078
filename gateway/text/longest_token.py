"""Bounds how many characters of a text one token may stand for, so that a text can be refused by its length alone.

Pure and conservative: any step that could drop or shrink text without bound makes the answer `UNKNOWN_LENGTH`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from checkpoints.vocabulary.alphabet import byte_alphabet

UNKNOWN_LENGTH = 0
MAX_COMPOSED_CHARS = 4  # code points that NFC and NFKC compose into one
BYTE_VALUES = 256

# Steps that keep or expand every character.
_KEEPING_NORMALIZERS = {"NFD", "NFKD", "Lowercase", "Prepend", "ByteLevel"}
_KEEPING_PRE_TOKENIZERS = {"ByteLevel", "Metaspace", "Digits", "UnicodeScripts"}


def max_chars_per_token(tokenizer: Mapping[str, Any], vocabulary: Iterable[str]) -> int:
    """Returns the maximum number of characters of text per token, or `UNKNOWN_LENGTH`.

    `tokenizer` is the tokenizer.json in use, `vocabulary` all tokens as they are spelled, with added ones. A text of n
    characters then has at least n / result tokens. A byte-level token stands for as many bytes as its spelling has
    characters, so for no more characters.
    """
    tokens = set(vocabulary)
    shrinking = _normalizer(tokenizer.get("normalizer"))
    whole = _keeps(tokenizer.get("pre_tokenizer")) and _knows_everything(tokenizer, tokens)
    # A token that absorbs the white space beside it stands for any amount of it.
    greedy = any(token.get("lstrip") or token.get("rstrip") for token in tokenizer.get("added_tokens") or ())
    return shrinking * max(map(len, tokens), default=UNKNOWN_LENGTH) if whole and not greedy else UNKNOWN_LENGTH


def _normalizer(step: Mapping[str, Any] | None) -> int:
    if step is None:
        return 1
    match step["type"]:
        case "Sequence":
            ratio = 1
            for one in step["normalizers"]:
                ratio *= _normalizer(one)
            return ratio
        case "NFC" | "NFKC":
            return MAX_COMPOSED_CHARS
        case "Replace":
            replaced, by = step["pattern"].get("String"), step["content"]
            return -(-len(replaced) // len(by)) if replaced and by else UNKNOWN_LENGTH
        case kind:
            return 1 if kind in _KEEPING_NORMALIZERS else UNKNOWN_LENGTH


def _keeps(step: Mapping[str, Any] | None) -> bool:
    if step is None:
        return True
    match step["type"]:
        case "Sequence":
            return all(map(_keeps, step["pretokenizers"]))
        case "Split" | "Punctuation":
            return bool(step["behavior"] != "Removed")
        case kind:
            return kind in _KEEPING_PRE_TOKENIZERS


def _knows_everything(tokenizer: Mapping[str, Any], tokens: set[str]) -> bool:
    """Returns whether no character is dropped or merged with others into one unknown token."""
    model = tokenizer["model"]
    if model["type"] not in ("BPE", "Unigram"):
        return False  # WordPiece and WordLevel make one unknown token of a word, however long
    if model.get("byte_fallback"):
        return all(f"<0x{byte:02X}>" in tokens for byte in range(BYTE_VALUES))
    if _works_on_bytes(tokenizer.get("pre_tokenizer")) or _works_on_bytes(tokenizer.get("normalizer")):
        return tokens.issuperset(byte_alphabet())
    return model["type"] == "BPE" and model.get("unk_token") is not None and not model.get("fuse_unk")


def _works_on_bytes(step: Mapping[str, Any] | None) -> bool:
    if step is None:
        return False
    parts = step.get("pretokenizers") or step.get("normalizers") or ()
    return step["type"] == "ByteLevel" or any(map(_works_on_bytes, parts))
