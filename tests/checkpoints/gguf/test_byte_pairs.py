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
EAST_ASIAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
DEEPSEEK_SIGNS = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
DEEPSEEK_V3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS = {
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "starcoder": [r"\p{N}", GPT2],
    "refact": [r"\p{N}", GPT2],
    "command-r": [r"\p{N}", GPT2],
    "llama-bpe": [LLAMA3],
    "llama3": [LLAMA3],
    "llama-v3": [LLAMA3],
    "falcon3": [LLAMA3],
    "pixtral": [LLAMA3],
    "dbrx": [LLAMA3],
    "smaug-bpe": [LLAMA3],
    "qwen2": [QWEN2],
    "deepseek-r1-qwen": [QWEN2],
    "qwen35": [QWEN2.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")],
    "tekken": [TEKKEN],
    "gpt-4o": [GPT4O],
    "deepseek-llm": [r"[\r\n]", r"\s?[\p{Lu}\p{Ll}\p{Lt}]+", DEEPSEEK_SIGNS, r"\s+$", EAST_ASIAN, r"\p{N}"],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", EAST_ASIAN, r"\p{N}"],
    "deepseek-v3": [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", DEEPSEEK_V3],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
}
"""How the originals cut texts, as the models' own tokenizer.json and llama.cpp's list of patterns have it."""
FALCON: list[Any] = [
    pre_tokenizers.Punctuation("contiguous"),
    pre_tokenizers.ByteLevel(add_prefix_space=False),
    pre_tokenizers.Digits(individual_digits=False),
    pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
]
WHOLE_WORDS = ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "tekken")
COMPOSED = ("qwen2", "deepseek-r1-qwen", "qwen35")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
UNREACHABLE = "Ġunreachable"  # by merges: only who looks whole pieces up first gives this token


def original_of(name: str, directory: Path, begins: bool = False, word: str = "<tool>") -> Path:
    """Makes a tokenizer that cuts texts as `name` says.

    It is trained on texts that are not cut: only a cut keeps its merges from crossing words, digits and lines.
    """
    tokenizer = Tokenizer(models.BPE(ignore_merges=name in WHOLE_WORDS))
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = as_bytes
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    cuts: list[Any] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PATTERNS.get(name, ())]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(FALCON if name == "falcon" else [*cuts, as_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    if name in COMPOSED:
        tokenizer.normalizer = normalizers.NFC()
    state = json.loads(tokenizer.to_str())
    state["model"]["vocab"][UNREACHABLE] = len(state["model"]["vocab"])
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.add_special_tokens([AddedToken(word, normalized=False) for word in SPECIAL])
    tokenizer.add_tokens([AddedToken(added, normalized=False) for added in (word, "</tool>")])
    if begins:
        first = (SPECIAL[0], tokenizer.token_to_id(SPECIAL[0]))
        around = processors.TemplateProcessing(f"{SPECIAL[0]} $A", f"{SPECIAL[0]} $A {SPECIAL[0]}:1 $B:1", [first])
        tokenizer.post_processor = around
    return write(directory, tokenizer, {"bos_token": SPECIAL[0], "eos_token": SPECIAL[2], "add_bos_token": begins})


def file_of(original: Path, name: str | None, target: Path) -> Path:
    """Writes a file that names its pre-tokenizer, or, with None, does not."""

    def add(writer: Any) -> None:
        words = words_of(original)
        writer.add_tokenizer_model("gpt2")
        if name is not None:
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


OLD_FILES = {"llama-bpe": "<|begin_of_text|>", "deepseek-coder": "<｜fim▁begin｜>", "qwen2": "<tool>"}


@pytest.mark.parametrize("name", OLD_FILES)
def test_an_old_file_that_names_none_is_cut_as_its_model_is(name: str, tmp_path: Path) -> None:
    """Special tokens tell which model it is; the third has `<|im_start|>`."""
    original = original_of(name, tmp_path / "original", word=OLD_FILES[name])
    directory = unpacked(file_of(original, None, tmp_path / "model.gguf"))
    expected, found = (Tokenizer.from_file(str(each / "tokenizer.json")) for each in (original, directory))
    for text in TEXTS:
        assert (
            found.encode(text, add_special_tokens=False).ids == expected.encode(text, add_special_tokens=False).ids
        ), text


def test_gpt_oss_does_not_end_with_the_end_of_a_part(tmp_path: Path) -> None:
    original = original_of("gpt-4o", tmp_path / "original")
    tokenizer = Tokenizer.from_file(str(original / "tokenizer.json"))
    tokenizer.add_special_tokens(["<|end|>", "<|return|>", "<|call|>"])
    tokenizer.save(str(original / "tokenizer.json"))
    directory = unpacked(file_of(original, "gpt-4o", tmp_path / "model.gguf"))
    ends = json.loads((directory / "generation_config.json").read_text())["eos_token_id"]
    assert {"<|return|>", "<|call|>"} <= {tokenizer.id_to_token(end) for end in ends}
    assert tokenizer.token_to_id("<|end|>") not in ends


def test_an_unknown_pre_tokenizer_is_refused(tmp_path: Path) -> None:
    file = file_of(original_of("gpt-2", tmp_path / "original"), "viking", tmp_path / "model.gguf")
    with pytest.raises(ModelError, match=r"^model\.gguf: the pre-tokenizer viking is not supported; supported: gpt-2"):
        unpacked(file)
