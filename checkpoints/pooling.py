"""Recognises models that are made for vectors or scores, by the files of sentence-transformers and transformers.

modules.json lists what sentence-transformers does behind the model, and the config of its Pooling says which states
count. A model with a classifier is known by its architecture, a chat model that scores by two words by its config
(`classifier_from_token`, as in vLLM) or its module LogitScore. Options come before the files.
"""

import json
from pathlib import Path
from typing import Any, get_args

from checkpoints.vocabulary.settings import read_object
from contracts.errors import ConfigError, ModelError
from contracts.pooling import Pooling, PoolingMethod
from infra.config.engine import EngineOptions

CLASSIFIER_SUFFIX, HEADLESS_SUFFIX = "ForSequenceClassification", "Model"
"""Ends of the names of architectures with a head for labels, and without a head."""
LM_HEAD_SUFFIX = "LMHeadModel"
"""The older end of architectures that write text, such as GPT-2's."""
_METHOD_FIELDS: dict[str, PoolingMethod] = {
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
}
_KNOWN_MODULES = {"Transformer", "Pooling", "Normalize", "LogitScore"}


def read_pooling(directory: Path, options: EngineOptions) -> Pooling | None:
    """Returns how the model in `directory` makes a result of a text; None for a model that is made for chats.

    Raises `ModelError` for a model whose result is not served, or is not described by its files, and `ConfigError` for
    options that contradict each other.
    """
    if options.pooling == "none":
        return None
    config, name = read_object(directory / "config.json"), directory.name
    modules = _modules(directory)
    architecture = str((config.get("architectures") or [""])[0])
    words = tuple(options.score_tokens.split(",")) if options.score_tokens else ()
    words = words or tuple(config.get("classifier_from_token") or ())
    if words:
        return Pooling("score", "last", tokens=_token_ids(directory, words))
    if "LogitScore" in modules:
        found = read_object(directory / modules["LogitScore"] / "config.json")
        ids = (found.get("false_token_id"), found.get("true_token_id"))
        if not all(isinstance(each, int) for each in ids):
            raise ModelError(f"{name}: LogitScore names no false_token_id and true_token_id")
        return Pooling("score", "last", tokens=tuple(int(each) for each in ids if each is not None))
    if architecture.endswith(CLASSIFIER_SUFFIX):
        _refuse_labels(config, name)
        return Pooling("score", "last", sigmoid=not _is_identity(config))
    method = options.pooling if options.pooling != "auto" else _method(directory, modules)
    if method is None:
        if architecture.endswith(HEADLESS_SUFFIX) and not architecture.endswith(LM_HEAD_SUFFIX):
            raise ModelError(
                f"{name}: {architecture} has no head, and no file says how a text's vector is made of its"
                " states; --pooling last, mean or cls says it"
            )
        return None
    dimensions = tuple(int(each) for each in config.get("matryoshka_dimensions") or ())
    return Pooling(
        "embed",
        method,
        normalized=not modules or "Normalize" in modules,
        matryoshka=options.matryoshka or bool(dimensions) or bool(config.get("is_matryoshka")),
        dimensions=dimensions,
    )


def is_bidirectional(config: dict[str, Any]) -> bool:
    """Returns whether the config of a decoder says that its tokens see the tokens behind them, too."""
    text = config.get("text_config") or {}
    return any(
        each.get("is_causal") is False or bool(each.get("use_bidirectional_attention")) for each in (config, text)
    )


def longest_text(directory: Path) -> int:
    """Returns the tokens that sentence-transformers takes of a text; 0: as many as the model has positions."""
    found = read_object(directory / "sentence_bert_config.json").get("max_seq_length")
    return int(found) if isinstance(found, int) else 0


def _modules(directory: Path) -> dict[str, str]:
    """Returns the folder of each module in modules.json by its class. Raises `ModelError` for other modules."""
    path = directory / "modules.json"
    if not path.is_file():
        return {}
    listed = _read_list(path)
    found = {str(each.get("type", "")).rpartition(".")[2]: str(each.get("path", "")) for each in listed}
    if others := sorted(found.keys() - _KNOWN_MODULES):
        raise ModelError(f"{directory.name}: modules.json has the module {others[0]}, which is not served")
    return found


def _read_list(path: Path) -> list[dict[str, Any]]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"--model: {path} cannot be read: {error}") from None
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise ModelError(f"--model: {path} is not a list of modules")
    return found


def _method(directory: Path, modules: dict[str, str]) -> PoolingMethod | None:
    if "Pooling" not in modules:
        return None
    pooling = read_object(directory / modules["Pooling"] / "config.json")
    modes = {key for key, value in pooling.items() if key.startswith("pooling_mode_") and value is True}
    known = {field: method for field, method in _METHOD_FIELDS.items() if field in modes}
    named: Any = "last" if pooling.get("pooling_mode") == "lasttoken" else pooling.get("pooling_mode")
    if not modes and named in get_args(PoolingMethod):
        method: PoolingMethod = named
        return method
    if len(modes) != 1 or not known:
        what = ", ".join(sorted(modes)) or str(pooling.get("pooling_mode"))
        raise ModelError(f"{directory.name}: its Pooling is {what}; served are {', '.join(_METHOD_FIELDS)}, one alone")
    return next(iter(known.values()))


def _token_ids(directory: Path, words: tuple[str, ...]) -> tuple[int, ...]:
    """Returns the ids of the words for no and yes. Raises `ConfigError` unless each is one token."""
    option = ",".join(words)
    if len(words) != 2:
        raise ConfigError("score_tokens", option, "two words say no and yes, such as no,yes")
    from checkpoints.vocabulary.reading import tokenizer_of

    tokenizer = tokenizer_of(directory)
    ids: list[Any] = [tokenizer.token_to_id(word) for word in words]
    for word, id in zip(words, ids, strict=True):
        if id is None:
            raise ConfigError("score_tokens", option, f"{word!r} is no token of {directory.name}")
    return tuple(ids)


def _refuse_labels(config: dict[str, Any], name: str) -> None:
    labels = config.get("num_labels") or len(config.get("id2label") or ("", ""))
    if labels != 1:
        raise ModelError(f"{name}: its classifier has {labels} labels, and scores are served of classifiers with one")


def _is_identity(config: dict[str, Any]) -> bool:
    """Returns whether sentence-transformers leaves the classifier's output as it is."""
    activation = (config.get("sentence_transformers") or {}).get("activation_fn")
    return "Identity" in str(activation or config.get("sbert_ce_default_activation_function") or "")
