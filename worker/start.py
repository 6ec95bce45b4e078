"""Starts and ends a worker: settings, model, threads, signals, exit status.

Every failure is reported in one sentence.
"""

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

import torch
from llguidance import LLTokenizer
from msgspec import structs

from checkpoints.grammars import read_tokenizer
from checkpoints.model_location import locate
from contracts.adapters import parse_sources
from contracts.errors import BatonError
from contracts.ids import new_epoch
from contracts.kinds import Quantization
from contracts.kv.spec import refuse_codec_of_bytes
from engine.blocks.key_changes import KeyChanges
from engine.blocks.manager import BlockManager
from engine.device import choose_device, device_label, dtype_name
from engine.executor import Executor
from engine.grammars.masks import GrammarMasks
from engine.grammars.preparation import Preparation
from engine.model.config import ExpertsMLP, ModelConfig
from engine.parallel.peers import NO_PEERS
from engine.parallel.rank_group import ONE_RANK
from engine.schedule.admission import GROWTH_SHARE
from engine.schedule.chunking import Chunking
from engine.schedule.idle_steps import IdleSteps
from engine.schedule.prompt_turns import SHORTER_PROMPTS_SHARE
from engine.schedule.scheduler import Scheduler, SchedulerLimits
from engine.schedule.speculation import Speculation
from engine.speculation.control.controller import DraftController
from engine.speculation.proposers.earlier_answers import EarlierAnswers
from engine.speculation.proposers.ngram import NGramProposer
from engine.speculation.proposers.proposer import EngineProposer
from engine.start.load import LoadedEngine, load_engine
from infra.config.engine import EngineConfig
from infra.config.place import PlaceOptions
from infra.config.speculation import MAX_DRAFT_TOKENS, on_prefill, proposing
from infra.config.worker import WorkerConfig
from infra.network.announcing import choose_bind_address
from infra.network.interfaces import own_addresses
from infra.network.ports import check_ports
from infra.network.sealing import load_secret
from infra.process.descriptors import raise_limit
from infra.process.ending import end
from infra.process.hub_kernels import notice
from infra.process.log_lines import log_to_stderr
from infra.process.machine import machine
from infra.process.nvidia_driver import refuse_old_driver
from infra.process.status import StatusFile
from infra.process.supervised_life import own_life
from infra.process.tasks import child
from infra.redis.clients import connect
from infra.redis.records import Role as RoleName
from infra.redis.records import WorkerRecord
from infra.redis.store import Outage, ServerClock, check, until_answered
from kvtransfer.transports.joining import transports
from kvtransfer.transports.ring_socket import SUPPORTED
from pricing.rates import worth_bringing_back
from pricing.roofline.device_use import DeviceFigures, known_rates
from pricing.routes.links import HostLocation
from pricing.step_costs.fit import StepFit
from pricing.step_costs.steps import StepCosts
from pricing.threads import useful_threads
from worker.adapters import Adapters, AdapterShelf, NoAdapters
from worker.busy_page import BusyPage
from worker.cores import available_cores
from worker.engine_loop import EngineLoop
from worker.engine_status import EngineStatus, PromptCounts
from worker.engine_watch import end_process
from worker.io_thread import IOThread
from worker.life import Life
from worker.mailbox import Inbox, Outbox
from worker.memory_placement import place_worker
from worker.ranks.adapters import RankAdapters
from worker.ranks.gpus import gpus_of_ranks
from worker.ranks.starting import RankProcesses
from worker.role import Role, WorkerParts

SIGNAL_LOOK_S = 0.1  # between two checks for a signal, while Redis is asked
RANK_END_S = 10.0
"""Seconds that a worker on GPUs has to stop by itself after one of its ranks has ended."""
MAX_LABEL_CHARS = 63
MASK_THREADS = 4
TYPICAL_WARNING = (
    "--acceptance typical is inexact: above temperature 0, answers are not samples of the model's own distribution"
)
MAX_CPU_DRAFT_TOKENS = 4
"""The default of draft tokens on a CPU, where each row is computed: more draft tokens have cost more than they gained.

With so few, Medusa trees seldom branch, and rows of a chain have the same bits as steps without draft tokens.
"""
log = logging.getLogger("baton.worker")


def serve(
    name: RoleName,
    config: WorkerConfig,
    make_role: Callable[[WorkerParts], Role],
    load: Callable[..., LoadedEngine] = load_engine,
) -> int:
    """Runs a worker until it is asked to stop; returns the process's exit status. `load` makes its engine."""
    log_to_stderr(config.log_level, config.log_format, name)
    if theirs := notice():
        log.warning(theirs)
    raise_limit()
    status = StatusFile(config.status_file)
    try:
        return _serve(name, config, make_role, load, status)
    except BatonError as error:
        status.failed(str(error))
        print(f"error: {error}", file=sys.stderr)
        return 2


def _serve(
    name: RoleName,
    config: WorkerConfig,
    make_role: Callable[[WorkerParts], Role],
    load: Callable[..., LoadedEngine],
    status: StatusFile,
) -> int:
    inbox: Inbox[Any] = Inbox(config.inbox)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: inbox.stop())
    outbox: Outbox[Any] = Outbox(config.inbox)
    refuse_old_driver(config.engine.device)  # with `auto`, PyTorch would compute on the CPU
    bind = choose_bind_address(config.place, own_addresses())
    check_ports(bind, name, config.transfer)
    secret = load_secret(config.store.secret_file)
    status.report("connecting to Redis")
    if not asyncio.run(_found_store(config.store.redis, inbox, status)):
        return 0

    refuse_codec_of_bytes(config.engine.kv_dtype, config.transfer.kv_codec)
    proposing(config.engine)
    if name == "prefill":  # decodes only while no decode worker is there
        config = structs.replace(config, engine=structs.replace(on_prefill(config.engine), decode_graphs="off"))
    device = choose_device(config.engine.device)
    if device.type == "cpu":
        place_worker(config.numa_node)
    width = config.engine.width(name)
    cores = max(1, available_cores() // width)
    ranks = _ranks(config, width, cores, device)
    if ranks is not None:
        ranks.watch(partial(_stop, inbox, device))
    group, peers = (ranks.group, ranks) if ranks is not None else (ONE_RANK, NO_PEERS)
    shares_pool = name == "decode" and SUPPORTED and "pool" in transports(config.transfer)
    engine = load(config.engine, status.report, group=group, peers=peers, shares_pool=shares_pool)
    blocks = _block_manager(config, engine)
    preparation = _preparation(config, engine, inbox)
    fit = StepFit(_costs(config, engine))
    scheduler = _scheduler(name, config, engine, blocks, preparation, fit)
    busy = BusyPage(config.busy_page, cores, torch.set_num_threads)
    rate = engine.rates.prompt_tokens_per_second
    engine_status = EngineStatus(engine.step_tokens / rate if rate else 0.0)
    adapters = _adapters(config, engine, status, ranks)
    life = Life(config, new_epoch(), ServerClock(), engine_status, inbox, outbox, busy, adapters, bind)
    memory = engine.rank_pools or engine.pool
    parts = WorkerParts(life, memory.spec, memory, engine.model_config.vocab_size, scheduler, blocks)
    policy, make_transfer, layer_written = make_role(parts)
    layer_signal = engine.backend.layer_signal(layer_written, busy.divide)
    mask_threads = MASK_THREADS if engine.backend.device.type == "cuda" else 1  # on a CPU all cores compute the step
    masks = GrammarMasks(preparation, engine.model_config.vocab_size, mask_threads)
    logprobs_mode = config.engine.logprobs_mode
    typical = config.engine.acceptance == "typical"
    if typical:
        log.warning(TYPICAL_WARNING)
    executor = Executor(engine, layer_signal, masks, logprobs_mode, engine.proposer, typical=typical)
    threads = partial(useful_threads, engine.parameters, engine.backend.dtype.itemsize)
    most_tokens = min(engine.step_tokens, engine.model_config.max_model_len)
    idle_steps = IdleSteps(blocks, fit, most_tokens, decodes=name == "decode" and engine.pooler is None)
    loop = EngineLoop(life, executor, scheduler, policy, threads, engine.launch_depth, idle_steps)

    life.status.shows(policy.load(), PromptCounts())
    io = IOThread(life, _record(name, life, engine), secret, make_transfer, engine.backend.device)
    gc.collect()
    gc.freeze()  # the model stays: a full collection would take about 70 ms to scan it
    io.start()  # registers the worker; until then the engine is idle, and handles signals
    try:
        loop.run()
    finally:
        io.stop()
        busy.close()
        if ranks is not None:
            ranks.close()
    if io.error is not None and not io.registered:
        raise BatonError(f"the worker could not register: {io.error}")
    if loop.error:
        print(f"error: {loop.error}", file=sys.stderr)
        return 1
    log.info("stopped")
    return 0


def _ranks(config: WorkerConfig, width: int, cores: int, device: torch.device) -> RankProcesses | None:
    """Starts the other ranks, which die with this process; None without any. Raises `ConfigError` for too few GPUs."""
    if width == 1:
        return None
    if device.type == "cpu":
        return RankProcesses(config.engine, width, cores, form=config.log_format)
    gpus = gpus_of_ranks(width, config.engine.device, torch.cuda.device_count())
    return RankProcesses(config.engine, width, cores, "nccl", gpus, config.log_format)


def _stop(inbox: Inbox[Any], device: torch.device, error: str) -> None:
    """Stops the worker when one of its ranks has ended. On a GPU the engine thread may wait for that rank for ever."""
    inbox.stop(error)
    if device.type == "cuda":
        time.sleep(RANK_END_S)
        end_process(error)


def _adapters(config: WorkerConfig, engine: LoadedEngine, status: StatusFile, ranks: RankProcesses | None) -> Adapters:
    given = config.engine
    shelf: AdapterShelf = engine.adapters or NoAdapters()
    if engine.adapters is not None and ranks is not None:
        shelf = RankAdapters(engine.adapters, ranks)
    adapters = Adapters(shelf, given.model, given.lora_root)
    if engine.adapters is not None:
        status.report("loading adapters")
        adapters.load_fixed(parse_sources(given.lora, [Path(given.model).name]))
    return adapters


def _block_manager(config: WorkerConfig, engine: LoadedEngine) -> BlockManager:
    spec = engine.pool.spec
    worth = partial(
        worth_bringing_back,
        block_bytes=spec.groups[0].layers_bytes(),
        block_tokens=config.engine.block_size,
        rates=engine.rates,
    )
    ahead = engine.launch_depth * engine.step_tokens
    return BlockManager(spec, engine.pool.counts, engine.host_slots, worth, ahead, KeyChanges())


def _scheduler(
    name: RoleName,
    config: WorkerConfig,
    engine: LoadedEngine,
    blocks: BlockManager,
    preparation: Preparation,
    fit: StepFit,
) -> Scheduler:
    pooler = engine.pooler
    return Scheduler(
        blocks,
        SchedulerLimits(
            max_batch_tokens=engine.step_tokens,
            max_sequences=config.engine.max_sequences,
            max_model_len=engine.model_config.max_model_len + (pooler is not None),  # a text has nothing behind it
            growth_reserve=[ceil(GROWTH_SHARE * group.total) for group in blocks.groups],
            max_in_flight=engine.launch_depth,
            tells_states=engine.follower is not None,
            pools=pooler is not None,
            whole_prompts=pooler is not None and pooler.whole,
        ),
        chunking=Chunking(_step_seconds(config), engine.rates.prompt_tokens_per_second),
        readiness=preparation,
        fit=fit,
        speculation=_speculation(config.engine, engine, blocks, fit) if name == "decode" else None,
    )


def _speculation(
    engine_config: EngineConfig, engine: LoadedEngine, blocks: BlockManager, fit: StepFit
) -> Speculation | None:
    """Makes the speculation of `engine`; None without a proposer."""
    who = proposing(engine_config)
    if who == "none":
        return None
    answers = engine_config.speculative_answers
    earlier = EarlierAnswers(answers) if answers else None
    proposer = NGramProposer(earlier) if who == "ngram" else EngineProposer()
    most = engine_config.speculative_tokens or MAX_DRAFT_TOKENS[who]
    if not engine_config.speculative_tokens and engine.tree and engine.backend.device.type == "cpu":
        most = MAX_CPU_DRAFT_TOKENS
    controller = DraftController(fit, most, proposer.in_engine, engine.tree)
    return Speculation(blocks, proposer, most, controller, stores=who == "eagle")


def _step_seconds(config: WorkerConfig) -> float:
    return config.engine.step_ms / 1000


def _costs(config: WorkerConfig, engine: LoadedEngine) -> StepCosts:
    step_seconds = _step_seconds(config)
    return structs.replace(
        engine.costs,
        most_tokens=engine.step_tokens,
        shorter=SHORTER_PROMPTS_SHARE,
        target=step_seconds,
    )


def _preparation(config: WorkerConfig, engine: LoadedEngine, inbox: Inbox[Any]) -> Preparation:
    vocabulary = engine.model_config.vocab_size

    def read() -> LLTokenizer:
        return read_tokenizer(locate(config.engine.model, weights=False), vocabulary)

    return Preparation(read, inbox.wake)


def _record(name: RoleName, life: Life, engine: LoadedEngine) -> WorkerRecord:
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
    """Returns what the devices' use is computed from; of a mixture of experts a token's weights are not known."""
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


async def _found_store(url: str, inbox: Inbox[Any], status: StatusFile) -> bool:
    """Waits for Redis. Returns False if a signal came first. Raises `StoreRefused`."""
    store = connect(url)
    outage = Outage(log, "the worker waits for it before it loads the model")
    asking = child(until_answered(partial(check, store, url), outage, status.report))
    try:
        while not asking.done() and not inbox.stopping:
            await asyncio.wait({asking}, timeout=SIGNAL_LOOK_S)
        if asking.done():
            asking.result()
        return asking.done()
    finally:
        await end([asking])
        await store.aclose()
