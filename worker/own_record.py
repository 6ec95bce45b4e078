"""Describes a worker in its record for Redis."""

import os
import socket
import time

import torch

from contracts.kinds import Quantization
from engine.device import device_label, dtype_name
from engine.model.config import ExpertsMLP, ModelConfig
from engine.start.load import LoadedEngine
from infra.config.engine import EngineConfig
from infra.config.place import PlaceOptions
from infra.process.machine import machine
from infra.process.supervised_life import own_life
from infra.redis.records import Role as RoleName
from infra.redis.records import WorkerRecord
from pricing.roofline.device_use import DeviceFigures
from pricing.roofline.gpu_rates import known_rates
from pricing.routes.links import HostLocation
from worker.life import Life

MAX_LABEL_CHARS = 63


def own_record(name: RoleName, life: Life, engine: LoadedEngine) -> WorkerRecord:
    """Describes the worker without its addresses, which are known when its sockets are bound."""
    config, spec = life.config.engine, (engine.rank_pools or engine.pool).spec
    return WorkerRecord(
        epoch=life.epoch,
        role=name,
        address="",
        handoff_address="",
        model=config.model,  # as given: a hub's directories are named by a hash
        fingerprint=spec.fingerprint(),
        content=spec.content(),
        block_tokens=config.block_size,
        max_model_len=engine.model_config.max_model_len,
        device=device_label(engine.backend.device),
        dtype=dtype_name(engine.backend.dtype),
        started_at=time.time(),
        memory=engine.memory,
        figures=_figures(engine),
        quantization=_quantization(config, engine),
        kv_dtype=spec.dtype,
        place=_place(life.config.place),
        ranks=engine.group.shard.ranks,
        service=own_life().name,
        restarts=own_life().restarts,
        pooling=engine.pooler.pooling if engine.pooler is not None else None,
    )


def _figures(engine: LoadedEngine) -> DeviceFigures:
    """Returns the figures by which reports compute the devices' use; a mixture of experts has no weights per token."""
    device = engine.backend.device
    rates = known_rates(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    model = engine.model_config
    dense = isinstance(model, ModelConfig) and not any(isinstance(layer.mlp, ExpertsMLP) for layer in model.layers)
    parameters = float(engine.parameters) if dense else 0.0
    ranks = engine.group.shard.ranks
    return DeviceFigures(parameters, ranks * rates.read, ranks * rates.multiply) if rates else DeviceFigures(parameters)


def _place(options: PlaceOptions) -> HostLocation:
    label = options.node_label or os.environ.get("NODE_NAME", "")
    return HostLocation(socket.gethostname(), machine(), label[:MAX_LABEL_CHARS])


def _quantization(config: EngineConfig, engine: LoadedEngine) -> Quantization:
    """Returns the requested quantization, else the kind of most of the checkpoint's weights."""
    if config.quantization != "none" or not engine.forms:
        return config.quantization
    return engine.forms[0]
