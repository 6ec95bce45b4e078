"""Runs everything on this host with one command (`baton up`), until a signal asks to stop."""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from core.adapters import parse_sources
from core.cli import parse
from core.errors import BatonError, ConfigError
from core.keys.api_key import KeyOptions, make_key
from core.keys.key_file import change_keys
from core.keys.key_ring import KeyRing
from core.kv.spec import refuse_codec_of_bytes
from core.network.listening import http_url, is_local
from core.network.sealing import load_secret, new_secret
from core.network.tls import certificate
from core.slo import parse_objective
from core.speculation import proposing
from launcher import greeting
from launcher.checking.model_directory import checked
from launcher.checking.preflight import check_port, check_redis
from launcher.checking.shared_redis import check_secret
from launcher.host.gpus import usable_gpus
from launcher.host.processes import OWN_KEY, OWN_KEYS, Processes, described, environment
from launcher.host.redis_server import redis_service
from launcher.host.run_directory import run_directory
from launcher.host.signals import Signals
from launcher.host.state_directory import Instance, new_log, record
from launcher.host.supervisor import StartFailed, StopAsked, Supervisor
from launcher.options import DEMO_MODEL, DEMO_NAME, ROOT, UpConfig
from launcher.stages import Stages

BAD_INPUT = 2
WHOLE_REQUESTS = (
    "one GPU: decode workers serve whole requests, because a prefill worker beside them would hold the weights a second"
    " time and take turns with them; --prefill 1 splits"
)

OPEN_TO_ALL = (
    "--host {host}: whoever reaches this address may ask, and see the dashboard, for no key is needed; --api-keys FILE"
    " asks for one (./baton key new NAME)"
)


def up(arguments: Sequence[str]) -> int:
    """Runs an instance and returns the exit status: 0 stopped as asked, 1 failed, 2 bad input."""
    try:
        asked = parse(UpConfig, arguments, "baton up")
        config, directory = check(asked)
    except BatonError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    log, stages = new_log(), Stages()
    if asked.prefill is None and config.prefill == 0:
        stages.say(WHOLE_REQUESTS)
    if not config.api_keys and not is_local(config.host):
        stages.say(OPEN_TO_ALL.format(host=config.host))
    with Signals().installed() as signals, run_directory() as run:
        return _run(config, directory, run, log, stages, signals)


def check(config: UpConfig) -> tuple[UpConfig, Path | None]:
    """Refuses what cannot work before anything is started, cheapest first.

    Returns the options with a port in place of 0 and a number of prefill workers, and the model's directory, None for a
    hub id. Raises a `BatonError` that names the option and its value.
    """
    port = check_port("--port", config.host, config.port)
    if config.dashboard_port:
        if config.dashboard_port == port:
            raise ConfigError("--dashboard-port", port, "is the same as --port")
        check_port("--dashboard-port", config.host, config.dashboard_port)
    gpus = usable_gpus(config.device)
    if config.secret_file:
        load_secret(config.secret_file)
    directory = checked(config.model)
    parse_sources(config.engine.lora, [DEMO_NAME if config.model == DEMO_MODEL else Path(config.model).name])
    if config.engine.allow_lora_loading and not config.engine.lora_root:
        raise ConfigError("--allow-lora-loading", "true", "it needs --lora-root, below which adapters are")
    if config.engine.lora_root and not Path(config.engine.lora_root).expanduser().is_dir():
        raise ConfigError("--lora-root", config.engine.lora_root, "is not a directory")
    refuse_codec_of_bytes(config.engine.kv_dtype, config.transfer.kv_codec)
    _check_speculation(config)
    KeyRing(config.api_keys)
    parse_objective(config.slo)
    certificate(config.tls_cert, config.tls_key)
    if config.redis:
        check_redis(config.redis)
        check_secret(config.redis, config.secret_file)
    config = _placed(config)
    prefill = (0 if len(gpus) == 1 else 1) if config.prefill is None else config.prefill
    return replace(config, port=port, prefill=prefill), directory


def _check_speculation(config: UpConfig) -> None:
    """Refuses options that do not go together, and places where nothing is. Raises `ConfigError`."""
    engine = config.engine
    proposing(engine)
    for option, path in (("--medusa", engine.medusa), ("--eagle", engine.eagle)):
        if path and not Path(path).expanduser().is_dir():
            raise ConfigError(option, path, "is not a directory")
    if engine.draft_model:
        checked(engine.draft_model, "--draft-model")


def _placed(config: UpConfig) -> UpConfig:
    """Returns the options with whole paths, for services run in another directory."""
    found = [str(Path(path).absolute()) if path else "" for path in (config.tls_cert, config.tls_key)]
    keys = tuple(str(Path(path).absolute()) for path in config.api_keys)
    return replace(config, api_keys=keys, tls_cert=found[0], tls_key=found[1])


def _own_key(config: UpConfig, run: Path) -> str:
    """Makes the instance's own operator's key, which lives as long as its run directory; empty where none is needed."""
    if not config.api_keys:
        return ""
    made = make_key("this-instance", KeyOptions(tenant="baton", operator=True), time.time())
    change_keys(run / OWN_KEYS, lambda keys: [made.record], create=True)
    (run / OWN_KEY).touch(mode=0o600)
    (run / OWN_KEY).write_text(made.text)
    return made.text


def _run(config: UpConfig, directory: Path | None, run: Path, log: Path, stages: Stages, signals: Signals) -> int:
    model = str(directory or config.model)
    began = time.monotonic()
    with log.open("ab") as output:
        supervisor = Supervisor(
            ROOT, environment(os.environ, ROOT, run), output, stages, signals, config.silent_seconds
        )
        try:
            stages.show("log", str(log))
            redis = config.redis
            if not redis:
                service, redis = redis_service(run)
                supervisor.start([service])
            key = _own_key(config, run)
            processes = Processes(config, run, model, redis, _secret(config, run))
            supervisor.start([*processes.workers(), *processes.gateways(), *processes.dashboard()])
            url = http_url(config.host, config.port, bool(config.tls_cert))
            stages.say(greeting.text(config, url, directory, time.monotonic() - began, log, key))
            own = str(run / OWN_KEY) if key else ""
            with record(Instance(url, os.getpid(), model, time.time(), str(log), own, config.tls_cert)):
                supervisor.watch()
        except StopAsked:
            pass
        except (StartFailed, BatonError) as failure:
            stages.settle()
            print(f"error: {failure} (log: {log})", file=sys.stderr, flush=True)
            return 1
        finally:
            stages.show("stopping", "all services")
            supervisor.stop(described(config).stop_order())
            stages.show("stopping", "done")
            stages.settle()
    return 0


def _secret(config: UpConfig, run: Path) -> Path:
    if config.secret_file:
        return Path(config.secret_file).resolve()
    path = run / "secret"
    path.touch(mode=0o600)
    path.write_text(new_secret())
    return path
