"""Refuses options that cannot work before a manifest is printed."""

import re
from pathlib import Path

from checkpoints.model_location import HUB_ID_REGEX
from contracts.adapters import parse_sources
from contracts.errors import ConfigError
from contracts.kv.spec import refuse_codec_of_bytes
from contracts.served_names import served_names
from contracts.slo import parse_objective
from infra.config.speculation import proposing
from infra.keys.key_ring import KeyRing
from infra.network.tls import certificate
from infra.redis.clients import connect_blocking, redacted
from launcher.containers.container import MODELS_DIRECTORY
from launcher.kubernetes.options import ManifestsConfig
from launcher.options import DEMO_MODEL, DEMO_NAME

IMAGE_DIGEST_MARK = "@sha256:"
URL_PATTERN = re.compile(r"https?://[A-Za-z0-9.-]+(:\d{1,5})?(/\S*)?")
_NAME = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
LABEL_PATTERN = re.compile(rf"([a-z0-9.-]{{1,253}}/)?{_NAME}=({_NAME})?")

VARIABLE_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*")
ANNOTATION_PATTERN = re.compile(rf"([a-z0-9.-]{{1,253}}/)?{_NAME}=.*")


def check(config: ManifestsConfig) -> None:
    """Raises a `BatonError` that names the option and its value. The numbers of workers must be decided."""
    _check_image(config.image)
    _check_model("--model", config.model, "the demo model")
    engine = config.engine
    weights = (("--draft-model", engine.draft_model), ("--medusa", engine.medusa), ("--eagle", engine.eagle))
    for option, place in (*weights, ("--lora-root", engine.lora_root)):
        if place:
            _check_model(option, place)
    for source in parse_sources(engine.lora, served_names(config.served_model_name, DEMO_NAME)):
        _check_model("--lora", source.path)
    for option, maximum, minimum_option, minimum in (
        ("--max-prefill", config.max_prefill, "--prefill", config.prefill or 0),
        ("--max-decode", config.max_decode, "--decode", config.decode or 0),
    ):
        if maximum and maximum < minimum:
            raise ConfigError(option, maximum, f"is less than {minimum_option} {minimum}; 0 writes no autoscaler")
    if config.dashboard_port == config.port:
        raise ConfigError("--dashboard-port", config.dashboard_port, "is the same as --port")
    if config.existing_secret and config.secret_file:
        raise ConfigError("--secret-file", config.secret_file, "the secret is in --existing-secret already")
    if engine.host_kv_directory:
        raise ConfigError("--host-kv-directory", engine.host_kv_directory, "pods have no disk of their own for it")
    if config.hf_endpoint and not URL_PATTERN.fullmatch(config.hf_endpoint):
        raise ConfigError("--hf-endpoint", config.hf_endpoint, "is no URL, such as https://hub.example")
    for label in config.monitor_label:
        if not LABEL_PATTERN.fullmatch(label):
            raise ConfigError("--monitor-label", label, "expected NAME=VALUE, such as release=prometheus")
        if not config.service_monitor:
            raise ConfigError("--monitor-label", label, "it goes with --service-monitor")
    _check_places(config)
    _check_redis(config.redis)
    refuse_codec_of_bytes(engine.kv_dtype, config.transfer.kv_codec)
    proposing(engine)
    KeyRing(config.api_keys)
    parse_objective(config.slo)
    certificate(config.tls_cert, config.tls_key)


def _check_places(config: ManifestsConfig) -> None:
    pods, ingress = config.placement, config.ingress
    if config.models_access == "pod":
        if config.models_claim:
            raise ConfigError("--models-access", "pod", "--models-claim has the models already")
        if config.model.startswith(f"{MODELS_DIRECTORY}/"):
            raise ConfigError("--models-access", "pod", f"each pod downloads a model; {config.model} is on a volume")
    for option, given, pattern, example in (
        ("--node-selector", pods.node_selector, LABEL_PATTERN, "gpu=l4"),
        ("--env", pods.env, VARIABLE_PATTERN, "NCCL_DEBUG=INFO"),
        ("--ingress-annotation", ingress.ingress_annotation, ANNOTATION_PATTERN, "example.com/timeout=600"),
    ):
        for each in given:
            if not pattern.fullmatch(each):
                raise ConfigError(option, each, f"expected NAME=VALUE, such as {example}")
    for option, value in (
        ("--ingress-class", ingress.ingress_class),
        ("--ingress-tls-secret", ingress.ingress_tls_secret),
        ("--ingress-annotation", " ".join(ingress.ingress_annotation)),
        ("--route-gateway", ingress.route_gateway),
    ):
        if value and not ingress.hostname:
            raise ConfigError(option, value, "it goes with --hostname")
        if value and ingress.route_gateway and option != "--route-gateway":
            raise ConfigError(option, value, "--route-gateway writes an HTTPRoute, and no Ingress")
    if ingress.hostname and config.tls_cert:
        why = "TLS ends there, and what is written leads to gateways that speak HTTP; --tls-cert goes without it"
        raise ConfigError("--hostname", ingress.hostname, why)


def _check_redis(url: str) -> None:
    if not url:
        return
    connect_blocking(url).close()
    if url.startswith("unix:"):
        raise ConfigError("--redis", redacted(url), "is a socket of this host, which no pod has")


def _check_image(image: str) -> None:
    if IMAGE_DIGEST_MARK in image:
        return
    _, colon, tag = image.rpartition("/")[2].partition(":")
    if not colon or not tag:
        raise ConfigError("--image", image, "has no tag; a deployment is one version, so name it: IMAGE:TAG")
    if tag == "latest":
        raise ConfigError("--image", image, "may be another one tomorrow; a deployment is one version, so name it")


def _check_model(option: str, place: str, demo: str = "") -> None:
    if demo and place == DEMO_MODEL:
        return
    if place.startswith(f"{MODELS_DIRECTORY}/") or (HUB_ID_REGEX.fullmatch(place) and not Path(place).exists()):
        return
    why = f"no pod can read it: name a hub id, or a directory below {MODELS_DIRECTORY}, where the volume with models is"
    raise ConfigError(option, place, why)
