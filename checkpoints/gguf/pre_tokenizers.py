"""How each pre-tokenizer splits texts before byte pairs are merged, by llama.cpp's name for it."""

from typing import Any

from msgspec import Struct

CONTRACTIONS_REGEX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES_REGEX = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _by_words(digits: str) -> str:
    """Returns GPT-4's pattern; `digits` is the pattern of a number."""
    words = r"[^\r\n\p{L}\p{N}]?\p{L}+"
    return rf"{CONTRACTIONS_REGEX}|{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES_REGEX}"


def _by_case(digits: str, ending: str) -> str:
    """Returns GPT-4o's pattern, in which a word also ends where an upper-case letter follows a lower-case one."""
    upper, lower = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
    begin = r"[^\r\n\p{L}\p{N}]?"
    words = f"{begin}[{upper}]*[{lower}]+{ending}|{begin}[{upper}]+[{lower}]*{ending}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES_REGEX}"


class PreTokenizer(Struct, frozen=True):
    """`parts` and `normalizer` are entries of a tokenizer.json."""

    parts: tuple[dict[str, Any], ...]
    ignore_merges: bool = False  # a piece that is a word becomes that token without merging
    adds_bos: bool = False  # whether texts begin with the BOS token if the file does not say
    normalizer: dict[str, Any] | None = None


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _bytes(use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


GPT2_SPLIT = PreTokenizer((_bytes(True),))
DIGITS_SPLIT = PreTokenizer(({"type": "Digits", "individual_digits": True}, _bytes(True)))
LLAMA3_SPLIT = PreTokenizer((_split(_by_words(r"\p{N}{1,3}")), _bytes(False)), ignore_merges=True, adds_bos=True)
DBRX_SPLIT = PreTokenizer((_split(_by_words(r"\p{N}{1,3}")), _bytes(False)))
QWEN2_SPLIT = PreTokenizer((_split(_by_words(r"\p{N}")), _bytes(False)), normalizer={"type": "NFC"})
TEKKEN_SPLIT = PreTokenizer((_split(_by_case(r"\p{N}", "")), _bytes(False)), ignore_merges=True, adds_bos=True)
GPT4O_SPLIT = PreTokenizer((_split(_by_case(r"\p{N}{1,3}", f"{CONTRACTIONS_REGEX}?")), _bytes(False)))

PRE_TOKENIZERS = {
    "gpt-2": GPT2_SPLIT,
    "smollm": DIGITS_SPLIT,
    "refact": DIGITS_SPLIT,
    "starcoder": DIGITS_SPLIT,
    "llama-bpe": LLAMA3_SPLIT,
    "llama3": LLAMA3_SPLIT,
    "llama-v3": LLAMA3_SPLIT,
    "dbrx": DBRX_SPLIT,
    "smaug-bpe": DBRX_SPLIT,
    "qwen2": QWEN2_SPLIT,
    "deepseek-r1-qwen": QWEN2_SPLIT,
    "tekken": TEKKEN_SPLIT,
    "gpt-4o": GPT4O_SPLIT,
}
"""By `tokenizer.ggml.pre`, for files of the supported architectures."""
