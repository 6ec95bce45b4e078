"""Checks the options of a deployment on every target, so that an error names the option and its value."""

from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from contracts.adapters import parse_sources
from contracts.errors import ConfigError
from contracts.kv.spec import refuse_codec_of_bytes
from contracts.served_names import served_names
from contracts.slo import parse_objective
from infra.config.speculation import proposing
from infra.keys.key_ring import KeyRing
from infra.network.sealing import load_secret
from infra.network.tls import certificate
from launcher.checking.model_directory import checked
from launcher.checking.preflight import check_port, check_redis
from launcher.checking.shared_redis import check_secret
from launcher.options import DEMO_MODEL, DEMO_NAME, DeploymentOptions, UpConfig

Options = TypeVar("Options", bound=DeploymentOptions)


def check_settings(config: DeploymentOptions) -> Path | None:
    """Returns the model's directory, or None for a hub id. Raises a `BatonError` that names the option and value."""
    if config.secret_file:
        load_secret(config.secret_file)
    directory = checked(config.model)
    usual = DEMO_NAME if config.model == DEMO_MODEL else Path(config.model).name
    parse_sources(config.engine.lora, served_names(config.served_model_name, usual))
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
    return directory


def checked_port(config: UpConfig) -> int:
    """Returns the endpoint's port, a free port for 0. Raises `ConfigError` if a port is in use."""
    port = check_port("--port", config.host, config.port)
    if config.dashboard_port:
        if config.dashboard_port == port:
            raise ConfigError("--dashboard-port", port, "is the same as --port")
        check_port("--dashboard-port", config.host, config.dashboard_port)
    return port


def _check_speculation(config: DeploymentOptions) -> None:
    engine = config.engine
    proposing(engine)
    for option, path in (("--medusa", engine.medusa), ("--eagle", engine.eagle)):
        if path and not Path(path).expanduser().is_dir():
            raise ConfigError(option, path, "is not a directory")
    if engine.draft_model:
        checked(engine.draft_model, "--draft-model")


def with_absolute_key_paths(config: Options) -> Options:
    """Returns the options with absolute paths of API keys and certificates: services run in another directory."""
    found = [str(Path(path).absolute()) if path else "" for path in (config.tls_cert, config.tls_key)]
    keys = tuple(str(Path(path).absolute()) for path in config.api_keys)
    return replace(config, api_keys=keys, tls_cert=found[0], tls_key=found[1])
