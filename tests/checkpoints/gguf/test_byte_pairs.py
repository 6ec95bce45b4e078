"""Tokenizers of GPT-2's kind come out of a GGUF file as they went in: ids, texts, template and end tokens."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from checkpoints.gguf.pre_tokenizers import PRE_TOKENIZERS
from checkpoints.gguf.unpacking import unpacked
from contracts.errors import ModelError
from tests.checkpoints.gguf.vocabularies import TEMPLATE, TEXTS, types_of, words_of, write, write_file

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
PATTERNS = {
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "starcoder": [r"\p{N}", GPT2],
    "refact": [r"\p{N}", GPT2],
    "llama-bpe": [LLAMA3],
    "llama3": [LLAMA3],
    "llama-v3": [LLAMA3],
    "dbrx": [LLAMA3],
    "smaug-bpe": [LLAMA3],
    "qwen2": [QWEN2],
    "deepseek-r1-qwen": [QWEN2],
    "tekken": [TEKKEN],
    "gpt-4o": [GPT4O],
}
"""How the originals cut texts, as the models' own tokenizer.json and llama.cpp's list of patterns have it."""
WHOLE_WORDS = ("llama-bpe", "llama3", "llama-v3", "tekken")
COMPOSED = ("qwen2", "deepseek-r1-qwen")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
UNREACHABLE = "Ġunreachable"  # by merges: only who looks whole pieces up first gives this token


def original_of(name: str, directory: Path, begins: bool = False) -> Path:
    """Makes a tokenizer that cuts texts as `name` says.

    It is trained on texts that are not cut: only a cut keeps its merges from crossing words, digits and lines.
    """
    tokenizer = Tokenizer(models.BPE(ignore_merges=name in WHOLE_WORDS))
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = as_bytes
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PATTERNS[name]]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, as_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    if name in COMPOSED:
        tokenizer.normalizer = normalizers.NFC()
    state = json.loads(tokenizer.to_str())
    state["model"]["vocab"][UNREACHABLE] = len(state["model"]["vocab"])
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.add_special_tokens([AddedToken(word, normalized=False) for word in SPECIAL])
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in ("<tool>", "</tool>")])
    if begins:
        first = (SPECIAL[0], tokenizer.token_to_id(SPECIAL[0]))
        around = processors.TemplateProcessing(f"{SPECIAL[0]} $A", f"{SPECIAL[0]} $A {SPECIAL[0]}:1 $B:1", [first])
        tokenizer.post_processor = around
    return write(directory, tokenizer, {"bos_token": SPECIAL[0], "eos_token": SPECIAL[2], "add_bos_token": begins})


def file_of(original: Path, name: str, target: Path) -> Path:
    def add(writer: Any) -> None:
        words = words_of(original)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(name)
        writer.add_token_list(words)
        writer.add_token_types(types_of(original, words))

    return write_file(original, target, add)


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_ids_are_those_of_the_original(name: str, begins: bool, tmp_path: Path) -> None:
    original = original_of(name, tmp_path / "original", begins)
    directory = unpacked(file_of(original, name, tmp_path / "model.gguf"))
    expected, found = (Tokenizer.from_file(str(each / "tokenizer.json")) for each in (original, directory))
    for text in [*TEXTS, "is unreachable unreachables"]:
        for special in (True, False):
            ids = expected.encode(text, add_special_tokens=special).ids
            assert found.encode(text, add_special_tokens=special).ids == ids, text
            for skipped in (True, False):
                assert found.decode(ids, skip_special_tokens=skipped) == expected.decode(
                    ids, skip_special_tokens=skipped
                )
    assert found.get_vocab() == expected.get_vocab()


def test_template_and_end_tokens_are_those_of_the_original(tmp_path: Path) -> None:
    """Files name one end token; the others are known by their spelling, as in llama.cpp."""
    original = original_of("qwen2", tmp_path / "original")
    directory = unpacked(file_of(original, "qwen2", tmp_path / "model.gguf"))
    assert (directory / "chat_template.jinja").read_text() == TEMPLATE
    named = json.loads((directory / "tokenizer_config.json").read_text())
    assert (named["bos_token"], named["eos_token"]) == (SPECIAL[0], SPECIAL[2])
    tokenizer = Tokenizer.from_file(str(original / "tokenizer.json"))
    ends = sorted(tokenizer.get_vocab()[word] for word in (SPECIAL[0], SPECIAL[2]))
    assert json.loads((directory / "generation_config.json").read_text())["eos_token_id"] == ends


def test_an_unknown_pre_tokenizer_is_refused(tmp_path: Path) -> None:
    file = file_of(original_of("gpt-2", tmp_path / "original"), "viking", tmp_path / "model.gguf")
    with pytest.raises(ModelError, match=r"^model\.gguf: the pre-tokenizer viking is not supported; supported: gpt-2"):
        unpacked(file)
