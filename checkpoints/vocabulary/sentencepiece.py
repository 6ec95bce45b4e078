"""Reads tokenizer.model, SentencePiece's vocabulary; sentencepiece_model.proto documents its fields."""

from pathlib import Path
from typing import Any

from msgspec import Struct
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from checkpoints.vocabulary.protobuf import as_bytes, as_float, as_int, fields
from checkpoints.vocabulary.settings import named_tokens
from checkpoints.vocabulary.words import (
    CONTROL_TOKEN,
    NORMAL_TOKEN,
    SPACE_MARK,
    UNKNOWN_TOKEN,
    USER_DEFINED_TOKEN,
    Vocabulary,
    merges_by_score,
)

UNIGRAM_MODEL, BPE_MODEL = 1, 2
PIECES_FIELD, TRAINER_FIELD, NORMALIZER_FIELD = 1, 2, 3
SURROUNDING_SPACES_REGEX = rf"\A +|(?<![ {SPACE_MARK}])[ {SPACE_MARK}]++\z"
"""Spaces at the beginning and end of a text; possessive, so that a long run of spaces takes linear time."""


class SentencePieceModel(Struct, frozen=True):
    """The parts of a tokenizer.model that decide how texts become tokens."""

    vocabulary: Vocabulary
    scores: list[float]
    kind: int
    byte_fallback: bool
    unknown: int
    charsmap: bytes  # replacements of characters; may be empty
    prefixed: bool  # a space is put before each text
    squeezed: bool  # repeated spaces, and spaces around a text, are dropped


def read_model(path: Path) -> SentencePieceModel:
    """Raises `ValueError` for a file of another format."""
    words: list[str] = []
    scores: list[float] = []
    kinds: list[int] = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    for number, value in fields(memoryview(path.read_bytes())):
        if number == PIECES_FIELD:
            piece = dict(fields(as_bytes(value)))
            words.append(bytes(as_bytes(piece[1])).decode())
            scores.append(as_float(piece[2]) if 2 in piece else 0.0)
            kinds.append(as_int(piece.get(3, NORMAL_TOKEN)))
        elif number == TRAINER_FIELD:
            trainer = dict(fields(as_bytes(value)))
        elif number == NORMALIZER_FIELD:
            normalizer = dict(fields(as_bytes(value)))
    if not words:
        raise ValueError("it has no pieces")
    return SentencePieceModel(
        vocabulary=Vocabulary(words, kinds),
        scores=scores,
        kind=as_int(trainer.get(3, UNIGRAM_MODEL)),
        byte_fallback=bool(trainer.get(35, 0)),
        unknown=as_int(trainer.get(40, 0)),
        charsmap=bytes(as_bytes(normalizer.get(2, memoryview(b"")))),
        prefixed=bool(normalizer.get(3, 1)),
        squeezed=bool(normalizer.get(4, 1)),
    )


def sentencepiece_tokenizer(path: Path, settings: dict[str, Any]) -> Tokenizer:
    """Returns the tokenizer in `path`, with the `settings` of tokenizer_config.json.

    Raises `ValueError` for an unknown kind of model and for a file of another format.
    """
    model = read_model(path)
    words, kinds = model.vocabulary.words, model.vocabulary.kinds
    if model.kind not in (UNIGRAM_MODEL, BPE_MODEL):
        raise ValueError(f"its model type {model.kind} is neither Unigram nor BPE")
    tokenizer = Tokenizer(_model(model))
    steps: list[Any] = [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    if model.squeezed:
        steps += [normalizers.Replace(Regex(SURROUNDING_SPACES_REGEX), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    prefixed = model.prefixed and settings.get("add_prefix_space") is not False
    if prefixed and settings.get("legacy") is False:  # no space is put before the text after a special token
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE_MARK, "first", split=False)
    else:
        steps += [*([normalizers.Prepend(SPACE_MARK)] if prefixed else []), normalizers.Replace(" ", SPACE_MARK)]
    if steps:
        tokenizer.normalizer = normalizers.Sequence(steps)
    first: list[Any] = [decoders.Strip(" ", 1, 0)] if prefixed else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse(), *first]
    )
    added = model.vocabulary.of_kinds(UNKNOWN_TOKEN, CONTROL_TOKEN, USER_DEFINED_TOKEN)
    special = {id: kinds[id] != USER_DEFINED_TOKEN for id in added}
    tokenizer.add_tokens([AddedToken(words[id], normalized=False, special=flag) for id, flag in special.items()])
    _surround(tokenizer, settings)
    return tokenizer


def _model(model: SentencePieceModel) -> Any:
    words, kinds = model.vocabulary.words, model.vocabulary.kinds
    if model.kind == UNIGRAM_MODEL:
        scores = [score if kind == NORMAL_TOKEN else 0.0 for score, kind in zip(model.scores, kinds, strict=True)]
        return models.Unigram(list(zip(words, scores, strict=True)), model.unknown, model.byte_fallback)
    ids = model.vocabulary.ids()
    merged = {words[id]: model.scores[id] for id in model.vocabulary.of_kinds(NORMAL_TOKEN, USER_DEFINED_TOKEN)}
    merges = merges_by_score(ids, merged)
    return models.BPE(ids, merges, unk_token=words[model.unknown], fuse_unk=True, byte_fallback=model.byte_fallback)


def _surround(tokenizer: Tokenizer, settings: dict[str, Any]) -> None:
    """Puts BOS and EOS around texts as the settings say; the default is BOS only."""
    named = named_tokens(settings)
    around: list[tuple[str, int]] = []
    template = ["$A"]
    for name, default in (("bos_token", True), ("eos_token", False)):
        token = named.get(name, "")
        id = tokenizer.token_to_id(token)
        if settings.get(f"add_{name}", default) and id is not None:
            around.append((token, id))
            template.insert(0 if name == "bos_token" else len(template), token)
    if around:
        tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=around)
