"""How each pre-tokenizer splits texts before byte pairs are merged, by llama.cpp's name for it."""

from typing import Any

from msgspec import Struct

CONTRACTIONS_REGEX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES_REGEX = r"\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2_REGEX = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CASED_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376"
    "\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d"
    "\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
    "\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a"
    "\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
"""Letters with an upper and a lower case, as DeepSeek LLM lists them."""
EAST_ASIAN_REGEX = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
DEEPSEEK_SIGNS_REGEX = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
ASCII_SIGNS = r"""!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~"""
DEEPSEEK_V3_REGEX = (
    rf"[{ASCII_SIGNS}][A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    + rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{SPACES_REGEX}"
)


def _by_words(digits: str, marks: str = "") -> str:
    """Returns GPT-4's pattern; `digits` is the pattern of a number, `marks` are characters that count as letters."""
    words = rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}{marks}]+"
    return rf"{CONTRACTIONS_REGEX}|{words}|{digits}| ?[^\s\p{{L}}{marks}\p{{N}}]+[\r\n]*|{SPACES_REGEX}"


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


def _in_turn(*patterns: str, normalizer: dict[str, Any] | None = None) -> PreTokenizer:
    """Returns a pre-tokenizer that splits a text by the first pattern, the pieces by the second pattern, and so on."""
    return PreTokenizer((*map(_split, patterns), _bytes(False)), normalizer=normalizer)


GPT2_SPLIT = PreTokenizer((_bytes(True),))
DIGITS_SPLIT = PreTokenizer(({"type": "Digits", "individual_digits": True}, _bytes(True)))
LLAMA3_SPLIT = PreTokenizer((_split(_by_words(r"\p{N}{1,3}")), _bytes(False)), ignore_merges=True, adds_bos=True)
DBRX_SPLIT = _in_turn(_by_words(r"\p{N}{1,3}"))
QWEN2_SPLIT = _in_turn(_by_words(r"\p{N}"), normalizer={"type": "NFC"})
QWEN35_SPLIT = _in_turn(_by_words(r"\p{N}", r"\p{M}"), normalizer={"type": "NFC"})
TEKKEN_SPLIT = PreTokenizer((_split(_by_case(r"\p{N}", "")), _bytes(False)), ignore_merges=True, adds_bos=True)
GPT4O_SPLIT = _in_turn(_by_case(r"\p{N}{1,3}", f"{CONTRACTIONS_REGEX}?"))
DEEPSEEK_LLM_SPLIT = _in_turn(
    r"[\r\n]", rf"\s?[{CASED_LETTERS}]+", DEEPSEEK_SIGNS_REGEX, r"\s+$", EAST_ASIAN_REGEX, r"\p{N}"
)
DEEPSEEK_CODER_SPLIT = _in_turn(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", EAST_ASIAN_REGEX, r"\p{N}")
DEEPSEEK_V3_SPLIT = _in_turn(r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", DEEPSEEK_V3_REGEX)
FALCON_SPLIT = PreTokenizer(
    (
        {"type": "Punctuation", "behavior": "Contiguous"},
        _bytes(True),
        {"type": "Digits", "individual_digits": False},
        _split("[0-9][0-9][0-9]"),
    )
)
DEFAULT_SPLIT = _in_turn(r"[\p{P}\$\+<=>\^~\|]+", GPT2_REGEX, r"\p{N}+", "[0-9][0-9][0-9]")
"""What llama.cpp does with a file that names no pre-tokenizer."""

PRE_TOKENIZERS = {
    "gpt-2": GPT2_SPLIT,
    "smollm": DIGITS_SPLIT,
    "refact": DIGITS_SPLIT,
    "command-r": DIGITS_SPLIT,
    "starcoder": DIGITS_SPLIT,
    "llama-bpe": LLAMA3_SPLIT,
    "llama3": LLAMA3_SPLIT,
    "llama-v3": LLAMA3_SPLIT,
    "falcon3": LLAMA3_SPLIT,
    "pixtral": LLAMA3_SPLIT,
    "dbrx": DBRX_SPLIT,
    "smaug-bpe": DBRX_SPLIT,
    "qwen2": QWEN2_SPLIT,
    "deepseek-r1-qwen": QWEN2_SPLIT,
    "qwen35": QWEN35_SPLIT,
    "tekken": TEKKEN_SPLIT,
    "gpt-4o": GPT4O_SPLIT,
    "deepseek-llm": DEEPSEEK_LLM_SPLIT,
    "deepseek-coder": DEEPSEEK_CODER_SPLIT,
    "deepseek-v3": DEEPSEEK_V3_SPLIT,
    "falcon": FALCON_SPLIT,
    "default": DEFAULT_SPLIT,
}
"""By `tokenizer.ggml.pre`, for files of the supported architectures."""
NAME_BY_OWN_WORD = {
    "<|begin_of_text|>": "llama-bpe",
    "<｜fim▁begin｜>": "deepseek-coder",
    "<｜begin▁of▁sentence｜>": "deepseek-llm",
    "<|im_start|>": "qwen2",
}
"""Pre-tokenizers of models that were converted before files named one, by a special token; the first found counts."""
