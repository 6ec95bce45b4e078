"""Reads tokenizer.model, in which SentencePiece keeps a vocabulary; sentencepiece_model.proto names its fields."""

from pathlib import Path
from typing import Any

from msgspec import Struct
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from checkpoints.gguf.sentencepiece import SPACE, merges_of
from checkpoints.gguf.vocabulary import CONTROL, NORMAL, UNKNOWN, USER_DEFINED, Vocabulary
from checkpoints.vocabulary.protobuf import as_bytes, as_float, as_int, fields
from checkpoints.vocabulary.settings import named_tokens

UNIGRAM, BPE = 1, 2
PIECES, TRAINER, NORMALIZER = 1, 2, 3
AROUND = rf"\A +|(?<![ {SPACE}])[ {SPACE}]++\z"
"""Spaces around a text; a run of them is looked at once, wherever it is."""


class Model(Struct, frozen=True):
    """Holds what of a tokenizer.model decides how texts become tokens."""

    vocabulary: Vocabulary  # of pieces, whose kinds are numbered as GGUF numbers them
    scores: list[float]
    kind: int
    byte_fallback: bool
    unknown: int
    charsmap: bytes  # of characters that are written otherwise; empty: there are none
    prefixed: bool  # a text begins with a space that it does not have
    squeezed: bool  # spaces beside other spaces, and around a text, are dropped


def read_model(path: Path) -> Model:
    """Reads the file. Raises `ValueError` for a file of another format."""
    words: list[str] = []
    scores: list[float] = []
    kinds: list[int] = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    for number, value in fields(memoryview(path.read_bytes())):
        if number == PIECES:
            piece = dict(fields(as_bytes(value)))
            words.append(bytes(as_bytes(piece[1])).decode())
            scores.append(as_float(piece[2]) if 2 in piece else 0.0)
            kinds.append(as_int(piece.get(3, NORMAL)))
        elif number == TRAINER:
            trainer = dict(fields(as_bytes(value)))
        elif number == NORMALIZER:
            normalizer = dict(fields(as_bytes(value)))
    if not words:
        raise ValueError("it has no pieces")
    return Model(
        vocabulary=Vocabulary(words, kinds),
        scores=scores,
        kind=as_int(trainer.get(3, UNIGRAM)),
        byte_fallback=bool(trainer.get(35, 0)),
        unknown=as_int(trainer.get(40, 0)),
        charsmap=bytes(as_bytes(normalizer.get(2, memoryview(b"")))),
        prefixed=bool(normalizer.get(3, 1)),
        squeezed=bool(normalizer.get(4, 1)),
    )


def sentencepiece_tokenizer(path: Path, settings: dict[str, Any]) -> Tokenizer:
    """Returns the tokenizer in a tokenizer.model, with the `settings` of tokenizer_config.json.

    Raises `ValueError` for a kind that is not known, and for a file of another format.
    """
    found = read_model(path)
    words, kinds = found.vocabulary.words, found.vocabulary.kinds
    if found.kind not in (UNIGRAM, BPE):
        raise ValueError(f"its model type {found.kind} is neither Unigram nor BPE")
    tokenizer = Tokenizer(_model(found))
    steps: list[Any] = [normalizers.Precompiled(found.charsmap)] if found.charsmap else []
    if found.squeezed:
        steps += [normalizers.Replace(Regex(AROUND), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    prefixed = found.prefixed and settings.get("add_prefix_space") is not False
    if prefixed and settings.get("legacy") is False:  # a part behind a special token has no space in front of it
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, "first", split=False)
    else:
        steps += [*([normalizers.Prepend(SPACE)] if prefixed else []), normalizers.Replace(" ", SPACE)]
    if steps:
        tokenizer.normalizer = normalizers.Sequence(steps)
    first: list[Any] = [decoders.Strip(" ", 1, 0)] if prefixed else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *first]
    )
    special = {id: kinds[id] != USER_DEFINED for id in found.vocabulary.of_kinds(UNKNOWN, CONTROL, USER_DEFINED)}
    tokenizer.add_tokens([AddedToken(words[id], normalized=False, special=flag) for id, flag in special.items()])
    _surround(tokenizer, settings)
    return tokenizer


def _model(found: Model) -> Any:
    words, kinds = found.vocabulary.words, found.vocabulary.kinds
    if found.kind == UNIGRAM:
        scores = [score if kind == NORMAL else 0.0 for score, kind in zip(found.scores, kinds, strict=True)]
        return models.Unigram(list(zip(words, scores, strict=True)), found.unknown, found.byte_fallback)
    ids = found.vocabulary.ids()
    merged = {words[id]: found.scores[id] for id in found.vocabulary.of_kinds(NORMAL, USER_DEFINED)}
    merges = merges_of(ids, merged)
    return models.BPE(ids, merges, unk_token=words[found.unknown], fuse_unk=True, byte_fallback=found.byte_fallback)


def _surround(tokenizer: Tokenizer, settings: dict[str, Any]) -> None:
    """Has texts begin and end with the tokens that the settings ask for; by default they begin with theirs."""
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
