"""Tokenizers of SentencePiece's kind come out of a GGUF file as transformers' converter makes them of their scores."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors, trainers
from transformers import GemmaTokenizer
from transformers.tokenization_utils_base import generate_merges

from checkpoints.gguf.unpacking import unpacked
from tests.checkpoints.gguf.vocabularies import (
    BYTE,
    CONTROL,
    NORMAL,
    TEMPLATE,
    TEXTS,
    UNKNOWN,
    USER_DEFINED,
    words_of,
    write,
    write_file,
)

SPECIAL = ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
ADDED = {"<|im_start|>": True, "<|im_end|>": True, "<tool>": False, "</tool>": False}
"""Tokens that an instruction model has on top, by whether they are special."""


def scored_words() -> dict[str, float]:
    """Trains words: those made by the first merges have the highest scores, and letters the lowest, as in Llama's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    known = [text for text in TEXTS if text.isascii() or "naïve" in text]  # other letters are spelled in bytes
    tokenizer.train_from_iterator(known * 3, trainers.BpeTrainer(vocab_size=400, show_progress=False))
    merged = [left + right for left, right in json.loads(tokenizer.to_str())["model"]["merges"]]
    letters = [word for word in tokenizer.get_vocab() if len(word) == 1]
    words = [*dict.fromkeys(merged), *sorted({*letters, "▁"})]
    return {word: -float(rank) for rank, word in enumerate(words)}


def original_of(directory: Path, prefixed: bool) -> tuple[Path, dict[str, float]]:
    """Writes a tokenizer as Llama 2 has it, or as Gemma, which puts no space before a text."""
    scores = scored_words()
    words = {word: token for token, word in enumerate([*SPECIAL, *BYTES, *scores])}
    merges = generate_merges(words, scores)
    tokenizer = Tokenizer(models.BPE(words, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    spaces = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefixed else spaces
    last = [decoders.Strip(" ", 1, 0)] if prefixed else []
    each = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *last]
    tokenizer.decoder = decoders.Sequence(each)
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s>:1 $B:1", [("<s>", words["<s>"])])
    tokenizer.add_special_tokens([AddedToken(word, normalized=False) for word in SPECIAL])
    tokenizer.add_special_tokens([AddedToken(word, normalized=False) for word in ADDED if ADDED[word]])
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in ADDED if not ADDED[word]])
    named = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
    return write(directory, tokenizer, named), scores


def file_of(original: Path, scores: dict[str, float], prefixed: bool, target: Path, name: str = "a model") -> Path:
    types = {"<unk>": UNKNOWN, "<s>": CONTROL, "</s>": CONTROL} | dict.fromkeys(BYTES, BYTE)
    types |= {word: CONTROL if special else USER_DEFINED for word, special in ADDED.items()}

    def add(writer: Any) -> None:
        words = words_of(original)
        writer.add_name(name)
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_list(words)
        writer.add_token_scores([scores.get(word, -1000.0) for word in words])
        writer.add_token_types([types.get(word, NORMAL) for word in words])
        writer.add_add_space_prefix(prefixed)

    return write_file(original, target, add)


@pytest.mark.parametrize("prefixed", [True, False])
def test_ids_template_and_ends_are_those_of_the_original(prefixed: bool, tmp_path: Path) -> None:
    original, scores = original_of(tmp_path / "original", prefixed)
    directory = unpacked(file_of(original, scores, prefixed, tmp_path / "model.gguf"))
    expected, found = (Tokenizer.from_file(str(each / "tokenizer.json")) for each in (original, directory))
    for text in TEXTS:
        for special in (True, False):
            ids = expected.encode(text, add_special_tokens=special).ids
            assert found.encode(text, add_special_tokens=special).ids == ids, text
            assert found.decode(ids, skip_special_tokens=special) == expected.decode(ids, skip_special_tokens=special)
    merges = [json.loads(each.to_str())["model"]["merges"] for each in (expected, found)]
    whole = [pair for pair in merges[1] if "".join(pair) not in ADDED]  # which texts have as they are, before merges
    assert merges[0] == whole, "in the same order"
    assert any(expected.id_to_token(token) in BYTES for token in expected.encode("漢").ids)
    assert (directory / "chat_template.jinja").read_text() == TEMPLATE
    ends = sorted(expected.get_vocab()[word] for word in ("</s>", "<|im_end|>"))
    assert json.loads((directory / "generation_config.json").read_text())["eos_token_id"] == ends


RUNS = [f"{'▁' * length}" for length in range(2, 9)]
"""Gemma has runs of up to 31 spaces as words of their own."""


def gemma_of(directory: Path) -> tuple[Path, dict[str, float]]:
    """Writes transformers' own Gemma tokenizer, whose runs of spaces have the highest score."""
    scores = dict.fromkeys(RUNS, 0.0) | {
        word: score - 1 for word, score in scored_words().items() if "▁" not in word[1:]
    }
    names = ["<pad>", "<eos>", "<bos>", "<unk>"]
    words = {word: token for token, word in enumerate([*names, *BYTES, *scores])}
    tokenizer = GemmaTokenizer(vocab=words, merges=generate_merges(words, scores))._tokenizer
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in RUNS])
    named = {name: f"<{name[:3]}>" for name in ("pad_token", "eos_token", "bos_token", "unk_token")}
    return write(directory, tokenizer, named), scores


def test_runs_of_spaces_are_gemmas(tmp_path: Path) -> None:
    """llama.cpp's converter writes them as plain spaces, at their own ids, of the type for what users defined."""
    original, scores = gemma_of(tmp_path / "original")
    words = words_of(original)

    def add(writer: Any) -> None:
        types = dict.fromkeys(BYTES, BYTE) | dict.fromkeys(RUNS, USER_DEFINED) | {"<unk>": UNKNOWN}
        types |= dict.fromkeys(("<pad>", "<eos>", "<bos>", "<mask>"), CONTROL)
        writer.add_tokenizer_model("llama")
        writer.add_token_list([word.replace("▁", " ") if word in RUNS else word for word in words])
        writer.add_token_scores([-1000.0 if word in RUNS else scores.get(word, -1000.0) for word in words])
        writer.add_token_types([types.get(word, NORMAL) for word in words])
        writer.add_add_space_prefix(False)

    directory = unpacked(write_file(original, tmp_path / "model.gguf", add))
    expected, found = (Tokenizer.from_file(str(each / "tokenizer.json")) for each in (original, directory))
    seen = set()
    for text in [*TEXTS, *(f"a{' ' * length}fox" for length in range(20)), "   ", " \n  \n", "a▁▁b", "  ▁the"]:
        ids = expected.encode(text, add_special_tokens=False).ids
        assert found.encode(text, add_special_tokens=False).ids == ids, text
        assert found.decode(ids) == expected.decode(ids), text
        seen |= {words[token] for token in ids}
    assert seen >= set(RUNS)


@pytest.mark.parametrize(
    ("name", "strips"), [("Phi 3 Mini 4k Instruct", True), ("Phi-3.5-mini", True), ("Llama", False)]
)
def test_phi_3s_tokens_take_the_white_space_behind_them(name: str, strips: bool, tmp_path: Path) -> None:
    """Its file does not say so; but for `<s>`, `<unk>` and `<|endoftext|>`, they all do."""
    original, scores = original_of(tmp_path / "original", prefixed=True)
    tokenizer = Tokenizer.from_file(str(original / "tokenizer.json"))
    for word, special in {**ADDED, "</s>": True}.items():
        add = tokenizer.add_special_tokens if special else tokenizer.add_tokens
        add([AddedToken(word, normalized=False, rstrip=strips)])
    tokenizer.save(str(original / "tokenizer.json"))
    file = file_of(original, scores, True, tmp_path / "model.gguf", name)
    found = Tokenizer.from_file(str(unpacked(file) / "tokenizer.json"))
    for text in (*TEXTS, "<|im_start|> \n two words<|im_end|>\n<tool>  x", "<s>  a</s>  b", "<unk> c"):
        assert found.encode(text).ids == tokenizer.encode(text).ids, text
