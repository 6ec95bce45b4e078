"""Model directories without weights, as a gateway reads them: tokenizers of the kinds that models come with."""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

WORDS = [
    "The quick brown fox jumps over the lazy dog.",
    "Baton passes key-value blocks from a prefill worker to a decode worker, 1234567890 times.",
    "Hello, world! How are you? Fine, thank you. É, ü, 漢字 and 🙂🎉 are characters too.",
]
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HERMES = (
    "{% if tools %}{{ '<|im_start|>system\n' + (tools | tojson) + '<tool_call></tool_call><|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{% if message.reasoning_content %}{{ '<think>' + message.reasoning_content + '</think>' }}{% endif %}"
    "{{ message.content or '' }}{% for call in message.tool_calls or [] %}"
    "{{ '<tool_call>' + (call.function | tojson) + '</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""A template with tools and thinking, in the way of Hermes and Qwen."""
CONTEXT_TOKENS = 256


def byte_level(
    directory: Path, *, vocabulary: int = 0, template: str | None = CHATML, prefix_space: bool = False, **config: Any
) -> Path:
    """A byte-level BPE tokenizer with ChatML tokens, as Qwen's. `vocabulary` 0: just what the tokenizer knows."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(WORDS * 4, trainer)
    tokenizer.add_tokens([AddedToken("<tool call>", special=False, normalized=False)])
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    return _save(directory, tokenizer, settings, template, vocabulary, config)


def llama_style(
    directory: Path, *, template: str | None = None, metaspace: str = "", normalized: bool = False, **config: Any
) -> Path:
    """A SentencePiece-like BPE tokenizer with byte fallback and a beginning-of-text token, as Llama 2's.

    `metaspace` is the prepend scheme of a pre-tokenizer in place of the normalizer, as newer models have; `normalized`
    looks for special tokens in normalized text, as some older ones do.
    """
    trained = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    bytes_of = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<unk>", "<s>", "</s>", *bytes_of], show_progress=False, limit_alphabet=60
    )
    trained.train_from_iterator(WORDS * 4, trainer)
    made = json.loads(trained.to_str())
    made["added_tokens"] = [token for token in made["added_tokens"] if not token["content"].startswith("<0x")]
    for token in made["added_tokens"]:
        token["normalized"] = normalized
    if metaspace:
        made["normalizer"] = None
        made["pre_tokenizer"] = {
            "type": "Metaspace",
            "replacement": "▁",
            "prepend_scheme": metaspace,
            "split": False,
        }
    tokenizer = Tokenizer.from_str(json.dumps(made))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": {"content": "<s>", "__type": "AddedToken"},
        "eos_token": "</s>",
        "unk_token": "<unk>",
    }
    return _save(directory, tokenizer, settings, template, 0, config)


def unigram(directory: Path, *, template: str | None = None, normalized: bool = False, **config: Any) -> Path:
    """A SentencePiece-like Unigram tokenizer, whose model itself has special tokens among its pieces.

    `normalized` looks for special tokens in normalized text, where a full-width sign is the plain one.
    """
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    trainer = trainers.UnigramTrainer(
        vocab_size=200,
        special_tokens=[AddedToken(token, normalized=normalized) for token in ("<s>", "</s>", "<unk>")],
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator([*WORDS * 4, "<s / >"], trainer)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
    }
    return _save(directory, tokenizer, settings, template, 0, config)


def word_pieces(directory: Path, **config: Any) -> Path:
    """A WordPiece tokenizer with tokens around texts and pairs, as BERT's; a file may ask to cut texts and to pad."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(WORDS * 4, trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.enable_truncation(128)
    tokenizer.enable_padding(length=128)
    settings = {"tokenizer_class": "BertTokenizer", "sep_token": "[SEP]", "cls_token": "[CLS]", "eos_token": "[SEP]"}
    return _save(directory, tokenizer, settings, None, 0, {"model_type": "bert", **config})


def _save(
    directory: Path,
    tokenizer: Tokenizer,
    settings: dict[str, Any],
    template: str | None,
    vocabulary: int,
    config: dict[str, Any],
) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    eos = tokenizer.token_to_id(settings["eos_token"])
    model = {
        "model_type": "llama",
        "vocab_size": vocabulary or tokenizer.get_vocab_size(),
        "max_position_embeddings": CONTEXT_TOKENS,
        "eos_token_id": eos,
    }
    (directory / "config.json").write_text(json.dumps(model | config))
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    if template is not None:
        (directory / "chat_template.jinja").write_text(template)
    return directory
