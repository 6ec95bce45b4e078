"""Directories whose tokenizer is in another file than tokenizer.json, of the vocabularies that mistral-common ships."""

import base64
import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import mistral_common

DATA = Path(mistral_common.__file__).parent / "data"
LISTED = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[ARGS]", "<pad>"]
CODE = "def f(a):\n    return {'a': 1.5e-3}  # two  spaces\t\r\n\r\n"
TEXTS = [
    "",
    " ",
    "a",
    " a",
    "\n",
    CODE,
    "Hello, world! I'm HERE; don't. 🙂👩‍👩‍👧 漢字Ab ßÉ 1234567 x" + "=" * 70,
    "   x   ",
]


def texts() -> list[str]:
    drawn, found = random.Random(0), list(TEXTS)
    for _ in range(400):
        signs = [" ", "\n", "a", "b", "1", "é", "漢", "\u2581", *(chr(drawn.randrange(0x20, 0x3000)) for _ in range(8))]
        found.append("".join(drawn.choice(signs) for _ in range(drawn.randrange(1, 60))))
    return found


@cache
def _tekken() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / "tekken_240911.json").read_bytes())
    return found


def ranked(count: int) -> list[bytes]:
    """Returns the first tokens of Tekken, whose merges are all among them."""
    return [base64.b64decode(word["token_bytes"]) for word in _tekken()["vocab"][:count]]


def write(directory: Path, config: dict[str, Any], settings: dict[str, Any] | None = None) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(
        json.dumps({"model_type": "mistral", "max_position_embeddings": 256} | config)
    )
    if settings is not None:
        (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


def tekken(directory: Path, *, tokens: int = 6000, special: int = 20, listed: bool = True) -> Path:
    """A tekken.json of some of the tokens, with its own list of special tokens, or without, as older ones."""
    given = _tekken()
    sizes = {"default_vocab_size": tokens + special, "default_num_special_tokens": special}
    made: dict[str, Any] = {"config": given["config"] | sizes, "vocab": given["vocab"][: tokens + 100]}
    if listed:
        made["config"]["version"] = "v7"
        made["special_tokens"] = [
            {"rank": rank, "token_str": text, "is_control": True} for rank, text in enumerate(LISTED)
        ] + [
            {"rank": rank, "token_str": f"<SPECIAL_{rank}>", "is_control": True} for rank in range(len(LISTED), special)
        ]
    write(directory, {"vocab_size": tokens + special, "eos_token_id": 2})
    (directory / "tekken.json").write_text(json.dumps(made))
    return directory


def tiktoken(directory: Path, *, tokens: int = 6000, kind: str = "kimi_k2") -> Path:
    """A tiktoken.model, with special tokens in tokenizer_config.json as Kimi K2 has them."""
    entry = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
    listed = {
        str(tokens): {**entry, "content": "[BOS]", "special": True},
        str(tokens + 1): {**entry, "content": "[EOS]", "special": True},
        str(tokens + 3): {**entry, "content": "<|tool_call_begin|>", "special": False},
    }
    settings = {"bos_token": "[BOS]", "eos_token": "[EOS]", "added_tokens_decoder": listed}
    write(directory, {"model_type": kind, "vocab_size": tokens + 8}, settings)
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(ranked(tokens))]
    (directory / "tiktoken.model").write_text("".join(lines))
    return directory


def sentencepiece(directory: Path, source: Path | bytes, **settings: Any) -> Path:
    write(directory, {"vocab_size": 32000, "eos_token_id": 2}, settings)
    (directory / "tokenizer.model").write_bytes(source if isinstance(source, bytes) else source.read_bytes())
    return directory
