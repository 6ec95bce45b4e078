"""Makes a byte-level BPE tokenizer, as GPT-2's, from the words and merges in a GGUF file."""

from checkpoints.gguf.config import Metadata
from checkpoints.gguf.pre_tokenizers import NAME_BY_OWN_WORD, PRE_TOKENIZERS
from checkpoints.gguf.tokenizer_parts import TokenizerParts, bpe_model
from checkpoints.vocabulary.words import CONTROL_TOKEN, USER_DEFINED_TOKEN, Vocabulary
from contracts.errors import ModelError


def byte_pairs(metadata: Metadata, vocabulary: Vocabulary) -> TokenizerParts:
    """Raises `ModelError` if the merges are missing or broken, or the pre-tokenizer is unknown."""
    name = _pre_tokenizer_name(metadata, vocabulary)
    if name not in PRE_TOKENIZERS:
        known = ", ".join(PRE_TOKENIZERS)
        raise ModelError(f"{metadata.name}: the pre-tokenizer {name} is not supported; supported: {known}")
    merges = []
    for merge in metadata.required("tokenizer.ggml.merges", list):
        left, _, right = merge.partition(" ")
        merges.append((left, right))
    kind, ids = PRE_TOKENIZERS[name], vocabulary.ids()
    for left, right in merges:
        if not (left in ids and right in ids and left + right in ids):
            raise ModelError(f"{metadata.name}: the merge {f'{left} {right}'!r} is not of words of the vocabulary")
    return TokenizerParts(
        model=bpe_model(ids, merges, ignore_merges=kind.ignore_merges),
        normalizer=kind.normalizer,
        pre_tokenizer={"type": "Sequence", "pretokenizers": list(kind.parts)},
        decoder={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        adds_bos=kind.adds_bos,
    )


def _pre_tokenizer_name(metadata: Metadata, vocabulary: Vocabulary) -> str:
    """Returns the pre-tokenizer's name; for an old file that has none, the name that its special tokens tell."""
    if "tokenizer.ggml.pre" in metadata.header.metadata:
        return str(metadata.required("tokenizer.ggml.pre", str))
    words = {vocabulary.words[token] for token in vocabulary.of_kinds(CONTROL_TOKEN, USER_DEFINED_TOKEN)}
    return next((name for word, name in NAME_BY_OWN_WORD.items() if word in words), "default")
