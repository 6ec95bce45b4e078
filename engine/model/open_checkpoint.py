"""Opens the weights in a model's directory, whatever program wrote them."""

import logging
from pathlib import Path

from checkpoints.gguf.unpacking import GGUF_INDEX
from engine.model.checkpoint.weights import Checkpoint
from engine.model.config_files import quantization_of, raw_config
from engine.model.formats.registry import format_of

LOG = logging.getLogger(__name__)


def open_checkpoint(directory: Path) -> Checkpoint:
    """Opens the weights in a model's directory. Raises `ModelError` if they are broken or not supported."""
    if (directory / GGUF_INDEX).is_file():
        # The gguf package takes half a second to import, and a machine that serves no GGUF file may lack it.
        from engine.model.gguf.checkpoint import open_gguf

        return open_gguf(directory)
    raw, name = raw_config(directory), directory.name
    if (quantization_of(raw, name) or {}).get("kv_cache_scheme"):
        LOG.info("%s: its kv_cache_scheme is ignored: --kv-dtype decides how KV is stored", name)
    return Checkpoint(directory, format_of(raw, name))
