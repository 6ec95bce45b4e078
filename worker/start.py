"""Starts and ends a worker: settings, model, threads, signals, exit status.

Every failure is reported in one sentence.
"""

import asyncio
import gc
import logging
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
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
from contracts.kv.spec import refuse_codec_of_bytes
from engine.backends.base import OnLayer
from engine.device import choose_device
from engine.executor import Executor
from engine.grammars.masks import GrammarMasks
from engine.grammars.preparation import Preparation
from engine.parallel.peers import NO_PEERS
from engine.parallel.rank_group import ONE_RANK
from engine.schedule.idle_steps import IdleSteps
from engine.start.load import LoadedEngine, load_engine
from infra.config.speculation import on_prefill, proposing
from infra.config.worker import WorkerConfig
from infra.network.announcing import choose_bind_address
from infra.network.interfaces import own_addresses
from infra.network.ports import check_ports
from infra.network.sealing import load_secret
from infra.process.descriptors import raise_limit
from infra.process.ending import end
from infra.process.hub_kernels import notice
from infra.process.log_lines import log_to_stderr
from infra.process.nvidia_driver import refuse_old_driver
from infra.process.status import StatusFile
from infra.process.tasks import child
from infra.redis.clients import connect
from infra.redis.records import Role as RoleName
from infra.redis.store import Outage, ServerClock, check, until_answered
from kvtransfer.transports.joining import transports
from kvtransfer.transports.shm.ring_socket import RINGS_SUPPORTED
from pricing.step_costs.fit import StepFit
from pricing.threads import useful_threads
from worker.adapters import Adapters, AdapterShelf, NoAdapters
from worker.engine_loop import EngineLoop
from worker.engine_status import EngineStatus, PromptCounts
from worker.engine_watch import end_process
from worker.host.busy_page import BusyPage
from worker.host.cores import available_cores
from worker.host.memory_placement import place_worker
from worker.io_thread import IOThread
from worker.life import Life
from worker.mailbox import Inbox, Outbox
from worker.own_record import own_record
from worker.ranks.adapters import RankAdapters
from worker.ranks.gpus import gpus_of_ranks
from worker.ranks.starting import RankProcesses
from worker.role import Role, WorkerParts
from worker.scheduler_setup import make_block_manager, make_scheduler, step_costs
from worker.transfer import MakeTransfer

SIGNAL_CHECK_S = 0.1  # between two checks for a signal, while Redis is asked
RANK_END_S = 10.0
"""Seconds that a worker on GPUs has to stop by itself after one of its ranks has ended."""
MASK_THREADS = 4
TYPICAL_WARNING = (
    "--acceptance typical is inexact: above temperature 0, answers are not samples of the model's own distribution"
)
log = logging.getLogger("baton.worker")


def serve(
    name: RoleName,
    config: WorkerConfig,
    make_role: Callable[[WorkerParts], Role],
    load: Callable[..., LoadedEngine] = load_engine,
) -> int:
    """Runs a worker until it is asked to stop; returns the process's exit status. `load` makes its engine."""
    log_to_stderr(config.log_level, config.log_format, name)
    if warning := notice():
        log.warning(warning)
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
    refuse_old_driver(config.engine.device)  # with `auto`, PyTorch would compute on the CPU
    bind = choose_bind_address(config.place, own_addresses())
    check_ports(bind, name, config.transfer)
    secret = load_secret(config.store.secret_file)
    status.report("connecting to Redis")
    if not asyncio.run(_wait_for_store(config.store.redis, inbox, status)):
        return 0

    config = _settings_of_role(name, config)
    device = choose_device(config.engine.device)
    if device.type == "cpu":
        place_worker(config.numa_node)
    width = config.engine.width(name)
    cores = max(1, available_cores() // width)
    ranks = _ranks(config, width, cores, device)
    if ranks is not None:
        ranks.watch(partial(_stop, inbox, device))
    engine = _load_engine(name, config, ranks, load, status)
    busy = BusyPage(config.busy_page, cores, torch.set_num_threads)
    rate = engine.rates.prompt_tokens_per_second
    engine_status = EngineStatus(engine.step_tokens / rate if rate else 0.0)
    adapters = _adapters(config, engine, status, ranks)
    outbox: Outbox[Any] = Outbox(config.inbox)
    life = Life(config, new_epoch(), ServerClock(), engine_status, inbox, outbox, busy, adapters, bind)
    loop, make_transfer = _engine_loop(name, life, engine, make_role)

    io = IOThread(life, own_record(name, life, engine), secret, make_transfer, engine.backend.device)
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


def _settings_of_role(name: RoleName, config: WorkerConfig) -> WorkerConfig:
    """Returns the settings as a role uses them. Raises `ConfigError` for settings that contradict each other."""
    refuse_codec_of_bytes(config.engine.kv_dtype, config.transfer.kv_codec)
    proposing(config.engine)
    if name == "prefill":  # decodes only while no decode worker is there
        return structs.replace(config, engine=structs.replace(on_prefill(config.engine), decode_graphs="off"))
    return config


def _load_engine(
    name: RoleName,
    config: WorkerConfig,
    ranks: RankProcesses | None,
    load: Callable[..., LoadedEngine],
    status: StatusFile,
) -> LoadedEngine:
    group, peers = (ranks.group, ranks) if ranks is not None else (ONE_RANK, NO_PEERS)
    shares_pool = name == "decode" and RINGS_SUPPORTED and "pool" in transports(config.transfer)
    return load(config.engine, status.report, group=group, peers=peers, shares_pool=shares_pool)


def _engine_loop(
    name: RoleName, life: Life, engine: LoadedEngine, make_role: Callable[[WorkerParts], Role]
) -> tuple[EngineLoop[Any], MakeTransfer]:
    """Makes the engine thread's loop, with its scheduler, role policy and executor; and returns the role's transfer."""
    config = life.config
    blocks = make_block_manager(config, engine)
    preparation = _preparation(config, engine, life.inbox)
    fit = StepFit(step_costs(config, engine))
    scheduler = make_scheduler(name, config, engine, blocks, preparation, fit)
    memory = engine.rank_pools or engine.pool
    parts = WorkerParts(life, memory.spec, memory, engine.model_config.vocab_size, scheduler, blocks)
    policy, make_transfer, layer_written = make_role(parts)
    life.status.shows(policy.load(), PromptCounts())
    executor = _executor(config, engine, engine.backend.layer_signal(layer_written, life.busy.divide), preparation)
    threads = partial(useful_threads, engine.parameters, engine.backend.dtype.itemsize)
    max_tokens = min(engine.step_tokens, engine.model_config.max_model_len)
    idle_steps = IdleSteps(blocks, fit, max_tokens, decodes=name == "decode" and engine.pooler is None)
    return EngineLoop(life, executor, scheduler, policy, threads, engine.launch_depth, idle_steps), make_transfer


def _executor(
    config: WorkerConfig, engine: LoadedEngine, on_layer: OnLayer | None, preparation: Preparation
) -> Executor:
    mask_threads = MASK_THREADS if engine.backend.device.type == "cuda" else 1  # on a CPU all cores compute the step
    masks = GrammarMasks(preparation, engine.model_config.vocab_size, mask_threads)
    typical = config.engine.acceptance == "typical"
    if typical:
        log.warning(TYPICAL_WARNING)
    return Executor(engine, on_layer, masks, config.engine.logprobs_mode, engine.proposer, typical=typical)


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
    settings = config.engine
    shelf: AdapterShelf = engine.adapters or NoAdapters()
    if engine.adapters is not None and ranks is not None:
        shelf = RankAdapters(engine.adapters, ranks)
    adapters = Adapters(shelf, settings.model, settings.lora_root)
    if engine.adapters is not None:
        status.report("loading adapters")
        adapters.load_fixed(parse_sources(settings.lora, [Path(settings.model).name]))
    return adapters


def _preparation(config: WorkerConfig, engine: LoadedEngine, inbox: Inbox[Any]) -> Preparation:
    vocabulary = engine.model_config.vocab_size

    def read() -> LLTokenizer:
        return read_tokenizer(locate(config.engine.model, weights=False), vocabulary)

    return Preparation(read, inbox.wake)


async def _wait_for_store(url: str, inbox: Inbox[Any], status: StatusFile) -> bool:
    """Waits until Redis answers; returns False if a signal came first. Raises `StoreRefused`."""
    store = connect(url)
    outage = Outage(log, "the worker waits for it before it loads the model")
    asking = child(until_answered(partial(check, store, url), outage, status.report))
    try:
        while not asking.done() and not inbox.stopping:
            await asyncio.wait({asking}, timeout=SIGNAL_CHECK_S)
        if asking.done():
            asking.result()
        return asking.done()
    finally:
        await end([asking])
        await store.aclose()
