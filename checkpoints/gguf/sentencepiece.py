"""Makes a tokenizer that merges characters by the scores of words, as SentencePiece does, of those of a GGUF file."""

from typing import Any

from checkpoints.gguf.config import Metadata
from checkpoints.gguf.vocabulary import NORMAL, UNKNOWN, USER_DEFINED, Parts, Vocabulary, model_of
from contracts.errors import ModelError

SPACE = "▁"


def sentencepiece(given: Metadata, vocabulary: Vocabulary) -> Parts:
    """Returns the parts of a tokenizer.json. Raises `ModelError` where the scores of words are missing."""
    scores = given.required("tokenizer.ggml.scores", list)
    if len(scores) != len(vocabulary.words):
        raise ModelError(f"{given.name}: {len(vocabulary.words)} tokens have {len(scores)} scores")
    ids, unknown = vocabulary.ids(), vocabulary.of_kinds(UNKNOWN)
    merged = {vocabulary.words[token]: scores[token] for token in vocabulary.of_kinds(NORMAL, USER_DEFINED)}
    prefixed = spaced(given)
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    words: dict[str, Any] = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    first = [{"type": "Prepend", "prepend": SPACE}] if prefixed else []
    last = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefixed else []
    unknown_word = vocabulary.words[unknown[0]] if unknown else None
    return Parts(
        model=model_of(ids, merges_of(ids, merged), unk_token=unknown_word, fuse_unk=True, byte_fallback=True),
        normalizer={"type": "Sequence", "normalizers": [*first, spaces]},
        pre_tokenizer=None,
        decoder={"type": "Sequence", "decoders": [words, {"type": "ByteFallback"}, {"type": "Fuse"}, *last]},
        begins=True,
    )


def spaced(given: Metadata) -> bool:
    """Tells whether a text begins with a space that it does not have."""
    return bool(given.header.metadata.get("tokenizer.ggml.add_space_prefix", True))


def merges_of(ids: dict[str, int], scores: dict[str, float]) -> list[tuple[str, str]]:
    """Returns every pair of words that make a word, in transformers' order: words of a higher score come first.

    Of the pairs that make one word, the one whose left part is longer.
    """
    found = []
    for word, score in scores.items():
        pairs = ((word[:cut], word[cut:]) for cut in range(1, len(word)))
        known = [pair for pair in pairs if pair[0] in scores and pair[1] in scores]
        known.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        found += [(score, *pair) for pair in known]
    found.sort(key=lambda merge: (merge[0], len(merge[1]), len(merge[2])), reverse=True)
    return [(left, right) for _, left, right in found]
