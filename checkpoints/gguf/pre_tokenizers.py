"""Lists how texts are cut before pairs of bytes are merged, by the names that llama.cpp has for it."""

from typing import Any

from msgspec import Struct

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _by_words(digits: str) -> str:
    """Returns the pattern of GPT-4's kind, with so many digits in a piece."""
    words = r"[^\r\n\p{L}\p{N}]?\p{L}+"
    return rf"{CONTRACTIONS}|{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES}"


def _by_case(digits: str, ending: str) -> str:
    """Returns the pattern of GPT-4o's kind, whose words begin anew where small letters end."""
    upper, lower = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
    begin = r"[^\r\n\p{L}\p{N}]?"
    words = f"{begin}[{upper}]*[{lower}]+{ending}|{begin}[{upper}]+[{lower}]*{ending}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}"


class PreTokenizer(Struct, frozen=True):
    """Describes one kind; the parts are those of a tokenizer.json."""

    parts: tuple[dict[str, Any], ...]
    whole_words: bool = False  # a piece that is a word is that token, whatever the merges are
    begins: bool = False  # a text begins with the token for it, where the file does not say
    normalizer: dict[str, Any] | None = None


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _bytes(use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


GPT2 = PreTokenizer((_bytes(True),))
DIGITS = PreTokenizer(({"type": "Digits", "individual_digits": True}, _bytes(True)))
LLAMA3 = PreTokenizer((_split(_by_words(r"\p{N}{1,3}")), _bytes(False)), whole_words=True, begins=True)
DBRX = PreTokenizer((_split(_by_words(r"\p{N}{1,3}")), _bytes(False)))
QWEN2 = PreTokenizer((_split(_by_words(r"\p{N}")), _bytes(False)), normalizer={"type": "NFC"})
TEKKEN = PreTokenizer((_split(_by_case(r"\p{N}", "")), _bytes(False)), whole_words=True, begins=True)
GPT4O = PreTokenizer((_split(_by_case(r"\p{N}{1,3}", f"{CONTRACTIONS}?")), _bytes(False)))

PRE_TOKENIZERS = {
    "gpt-2": GPT2,
    "smollm": DIGITS,
    "refact": DIGITS,
    "starcoder": DIGITS,
    "llama-bpe": LLAMA3,
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
    "dbrx": DBRX,
    "smaug-bpe": DBRX,
    "qwen2": QWEN2,
    "deepseek-r1-qwen": QWEN2,
    "tekken": TEKKEN,
    "gpt-4o": GPT4O,
}
"""By `tokenizer.ggml.pre`, as files of the architectures that are served have it."""
