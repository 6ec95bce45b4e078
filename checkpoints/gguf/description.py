"""The files that describe a GGUF model as Hugging Face does: config, tokenizer, chat templates."""

import json
from pathlib import Path

from checkpoints.gguf.config import Metadata, config_of
from checkpoints.gguf.header import Header, read_header
from checkpoints.gguf.tokenizer import generation_config_of, templates_of, tokenizer_config_of, tokenizer_of
from contracts.errors import ModelError


def description_of(paths: list[Path]) -> dict[str, str]:
    """Returns the contents of the files by name, for a model in these shards.

    Raises `ModelError` for a file that is broken or not supported.
    """
    name, headers = paths[0].name, [read_header(path) for path in paths]
    tensors = {key: tensor for header in headers for key, tensor in header.tensors.items()}
    header = Header(headers[0].metadata, tensors)
    count = header.metadata.get("split.count", 1)
    if isinstance(count, int) and count > len(paths):
        raise ModelError(f"{name} is one of {count} parts of a model, whose names end in -00001-of-{count:05}.gguf")
    metadata = Metadata(header, name)
    files = {
        "config.json": json.dumps(config_of(metadata)),
        "generation_config.json": json.dumps(generation_config_of(metadata)),
        "tokenizer.json": json.dumps(tokenizer_of(metadata), ensure_ascii=False),
        "tokenizer_config.json": json.dumps(tokenizer_config_of(metadata), ensure_ascii=False),
    }
    for template, source in templates_of(metadata).items():
        path = "chat_template.jinja" if template == "default" else f"additional_chat_templates/{template}.jinja"
        files[path] = source
    return files
