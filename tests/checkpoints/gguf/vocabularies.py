"""Writes tokenizers in Hugging Face's form, and as llama.cpp's converter puts them into a GGUF file.

Merges, special tokens and the chat template are copied by the `gguf` package itself, as the converter has it do.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tokenizers import Tokenizer

from tests.gguf_files import add_config

TEMPLATE = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
CONFIG = {
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  two  spaces   and three ",
    "tab\tand\r\nlines\n\n\nwith  \n  spaces",
    "it's IT'S we'll WE'LL they've I'd you're don'T 's",
    "1 12 123 1234 1234567 3.14159 ½ ² Ⅷ ٣٤٥",
    "naïve café — “quotes” … e\u0301 A\u030a ﬁ",
    "Ελληνικά кириллица עברית العربية हिन्दी ไทย",
    "漢字かな交じり文 한국어 中文\uff0c标点。",
    "emoji 👩‍👩‍👧 🇩🇪 👍🏽 \u200b\ufeff",
    "camelCaseWords HTTPServer snake_case x==y && z!=w // no/slash\n/",
    "<|im_start|>user\nhi<|im_end|> behind <tool>  tool</tool> <|im_end|",
    "<s> and </s> inside, ▁ as it is, <0x0A> spelled",
    "\x00\x01\x7f",
]
"""Odd ones; the trained vocabularies know but a part of their words."""


def write(directory: Path, tokenizer: Tokenizer, config: dict[str, Any]) -> Path:
    """Writes a tokenizer's files as a model of Hugging Face has them."""
    directory.mkdir()
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE} | config))
    (directory / "config.json").write_text(json.dumps(CONFIG))
    return directory


def write_file(original: Path, target: Path, add: Callable[[Any], None], architecture: str = "llama") -> Path:
    """Writes a GGUF file that has the tokenizer of a directory, and no weights but an embedding of zeros."""
    count = Tokenizer.from_file(str(original / "tokenizer.json")).get_vocab_size()
    writer = gguf.GGUFWriter(target, architecture)
    add_config(writer, CONFIG)
    add(writer)
    gguf.SpecialVocab(original, load_merges=True, n_vocab=count).add_to_gguf(writer, quiet=True)
    writer.add_tensor("token_embd.weight", np.zeros((count, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def words_of(original: Path) -> list[str]:
    """Returns the words of a tokenizer in the order of their ids."""
    found = Tokenizer.from_file(str(original / "tokenizer.json")).get_vocab(with_added_tokens=True)
    return sorted(found, key=lambda word: found[word])


def types_of(original: Path, words: list[str]) -> list[int]:
    """Returns the type of each word, as the converter has it."""
    added = {each["content"]: each for each in json.loads((original / "tokenizer.json").read_text())["added_tokens"]}
    special = {True: CONTROL, False: USER_DEFINED}
    return [special[added[word]["special"]] if word in added else NORMAL for word in words]
