"""Makes a SentencePiece BPE tokenizer, which merges by the scores of words, from a GGUF file."""

from typing import Any

from checkpoints.gguf.config import Metadata
from checkpoints.gguf.tokenizer_parts import TokenizerParts, bpe_model
from checkpoints.vocabulary.words import (
    NORMAL_TOKEN,
    SPACE_MARK,
    UNKNOWN_TOKEN,
    USER_DEFINED_TOKEN,
    Vocabulary,
    merges_by_score,
)
from contracts.errors import ModelError


def sentencepiece(metadata: Metadata, vocabulary: Vocabulary) -> TokenizerParts:
    """Raises `ModelError` if the scores of words are missing."""
    scores = metadata.required("tokenizer.ggml.scores", list)
    if len(scores) != len(vocabulary.words):
        raise ModelError(f"{metadata.name}: {len(vocabulary.words)} tokens have {len(scores)} scores")
    ids, unknown = vocabulary.ids(), vocabulary.of_kinds(UNKNOWN_TOKEN)
    merged = {vocabulary.words[token]: scores[token] for token in vocabulary.of_kinds(NORMAL_TOKEN, USER_DEFINED_TOKEN)}
    prefixed = adds_space_prefix(metadata)
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK}
    words: dict[str, Any] = {"type": "Replace", "pattern": {"String": SPACE_MARK}, "content": " "}
    first = [{"type": "Prepend", "prepend": SPACE_MARK}] if prefixed else []
    last = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefixed else []
    unknown_word = vocabulary.words[unknown[0]] if unknown else None
    merges = merges_by_score(ids, merged)
    return TokenizerParts(
        model=bpe_model(ids, merges, unk_token=unknown_word, fuse_unk=True, byte_fallback=True),
        normalizer={"type": "Sequence", "normalizers": [*first, spaces]},
        pre_tokenizer=None,
        decoder={"type": "Sequence", "decoders": [words, {"type": "ByteFallback"}, {"type": "Fuse"}, *last]},
        adds_bos=True,
    )


def adds_space_prefix(metadata: Metadata) -> bool:
    return bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
