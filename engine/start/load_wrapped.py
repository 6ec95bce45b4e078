"""Loads a model that transformers' own code computes, with a backend's linear layers and attention over our KV pool."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from engine.adapters.slots import AdapterSlots
from engine.backends.choice import choose
from engine.kv.spec import make_spec
from engine.model.config import AttentionLayer, computation
from engine.model.layers.adapted import Adapting
from engine.model.open_checkpoint import open_checkpoint
from engine.model.quantized import Form
from engine.start.loaded_model import LoadedModel
from engine.start.sizing import refuse_large_weights
from engine.wrapped.config import read_own_config
from engine.wrapped.linears import replace_linears, round_linears
from engine.wrapped.loading import load_own_model
from engine.wrapped.model import WrappedModel
from engine.wrapped.own_run import own_run
from engine.wrapped.probe import probe
from engine.wrapped.proof import blocks_needed, prove
from engine.wrapped.stored import DequantizedCheckpoint, read_dequantized
from infra.config.engine import EngineConfig
from infra.process.status import Progress


def load_wrapped(
    config: EngineConfig, directory: Path, device: torch.device, dtype: torch.dtype, progress: Progress
) -> LoadedModel:
    """Loads the model, and checks on two short texts that it computes the same as transformers alone.

    Raises `ModelError` for a model that cannot be served this way, `ConfigError` for settings that do not fit.
    """
    found = read_own_config(directory, config.max_model_len, trust_remote_code=config.trust_remote_code)
    checkpoint = open_checkpoint(directory)
    parameters = checkpoint.parameters()
    refuse_large_weights(config, {None: parameters.total()}, dtype, device)  # loaded unquantized at first
    stored = read_dequantized(checkpoint, found, dtype) if found.quantized else DequantizedCheckpoint()
    dequantized = stored.tensors if found.quantized else None
    own = load_own_model(directory, found, device, dtype, progress, dequantized=dequantized)
    stored.tensors.clear()
    with torch.inference_mode():
        attentions = probe(own, found)
        described = found.described(tuple(AttentionLayer(each.attention) for each in attentions if each.source is None))
        backend = choose(config, device, dtype, described)
        modules = [each.module for each in attentions]
        reference_run = own_run(own, modules)
        layers = dict(own.named_modules())
        quantized = {id(layers[name]): weight for name, weight in stored.quantized.items()}
        if config.quantization != "none":
            plain = reference_run.products - quantized.keys()
            quantized |= round_linears(own, plain, dtype, config.quantization, progress)
            reference_run = own_run(own, modules)  # repeated with the values of the quantized weights
        forms: Counter[Form] = Counter()
        for weight in quantized.values():
            forms[weight.form] += weight.values.numel()
        adapting = Adapting(config.max_loras, config.max_lora_rank) if config.adapts else None
        adapters = None
        if device.type == "cpu" or quantized or adapting:  # on a GPU, plain layers stay as they are
            adapter_targets = replace_linears(
                own,
                reference_run.products,
                backend.linears,
                dtype,
                quantized,
                progress,
                adapting,
                reference_run.of_all_tokens,
            )
            if adapting is not None:
                adapters = AdapterSlots(adapter_targets, config.max_loras, config.max_lora_rank, device, dtype)
    model: WrappedModel[Any] = WrappedModel(own, attentions, adapting)
    progress("hashing weights", 0.0)
    digest = checkpoint.digest(computation(described) + config.quantization.encode())
    spec = make_spec(described, dtype, config.block_size, digest, config.kv_dtype)
    quantized_forms = tuple(form for form, _ in forms.most_common())
    loaded = LoadedModel(
        backend, model, described, spec, parameters.total(), adapters=adapters, forms=quantized_forms, is_wrapped=True
    )
    progress("comparing with transformers", 0.0)
    blocks = blocks_needed(config.block_size)
    # Without --kv-dtype, which would round.
    unrounded = replace(loaded, spec=make_spec(described, dtype, config.block_size, digest))
    rounding = config.quantization if config.quantization != "none" or not quantized_forms else quantized_forms[0]
    prove(unrounded.with_pool([blocks] * len(spec.groups)), reference_run, rounding)
    return loaded
