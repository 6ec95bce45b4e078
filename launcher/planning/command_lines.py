"""The command lines that start a planned deployment: on this host, in containers, on Kubernetes."""

from collections.abc import Iterator
from pathlib import Path

from launcher.containers.container import MODELS_DIRECTORY
from launcher.planning.trial import STEP_SHARE
from pricing.planning.candidates import PlannedDeployment
from pricing.planning.load import PlannedLoad

DEFAULT_QUANTIZATION, DEFAULT_KV_DTYPE = "none", "auto"


def command_lines(deployment: PlannedDeployment, load: PlannedLoad, model: str) -> Iterator[str]:
    """Yields a command for each target, as the options of `up`, `compose` and `manifests` are spelled."""
    devices = deployment.devices()
    if len(devices) > 1:
        yield "# a host for each kind of device; docs/operations.md, Several hosts, starts workers on each"
    options = f"{_workers(deployment)}{_formats(deployment)} --slo {_objective(load)} --step-ms {_step_ms(load)}"
    inside = _in_containers(model)
    if max(devices.values()) <= max(role.copy.device.links.host_devices for role in deployment.roles):
        yield f"./baton up --model {model} {options}"
        if inside != model:
            yield f"# containers read the directory as {inside}: put it into ./models and the cluster's volume"
        yield f"./baton compose --gpus {devices.total()} > compose.yaml"
        yield f"{_variables(deployment, load, inside)} docker compose up"
    else:
        yield "# more devices than a host has: Kubernetes or Ray (--on ray) spread the workers"
        yield f"./baton up --on ray --model {model} {options}"
    yield f"./baton manifests --model {inside} {options} --max-prefill 0 --max-decode 0 > baton.yaml"


def _in_containers(model: str) -> str:
    """Returns the name by which containers find a model: a hub id as it is, a directory below that of models."""
    path = Path(model).expanduser()
    return f"{MODELS_DIRECTORY}/{path.resolve().name}" if path.is_dir() else model


def _workers(deployment: PlannedDeployment) -> str:
    first, second = deployment.prefill, deployment.decode
    words = [f"--prefill {first.workers if first is not None else 0}", f"--decode {second.workers}"]
    if first is not None and first.copy.capacity.gpus > 1:
        words.append(f"--prefill-tp {first.copy.capacity.gpus}")
    if second.copy.capacity.gpus > 1:
        words.append(f"--decode-tp {second.copy.capacity.gpus}")
    return " ".join(words)


def _formats(deployment: PlannedDeployment) -> str:
    form = deployment.form
    weights = f" --quantization {form.weights}" if form.weights != DEFAULT_QUANTIZATION else ""
    return weights + (f" --kv-dtype {form.kv}" if form.kv != DEFAULT_KV_DTYPE else "")


def _objective(load: PlannedLoad) -> str:
    return f"ttft={1000 * load.ttft_s:g}ms,tpot={1000 * load.tpot_s:g}ms"


def _step_ms(load: PlannedLoad) -> str:
    return f"{1000 * STEP_SHARE * load.tpot_s:g}"


def _variables(deployment: PlannedDeployment, load: PlannedLoad, model: str) -> str:
    first, second, form = deployment.prefill, deployment.decode, deployment.form
    values = {
        "BATON_MODEL": model,
        "BATON_PREFILL": str(first.workers if first is not None else 0),
        "BATON_DECODE": str(second.workers),
        "BATON_PREFILL_TP": str(first.copy.capacity.gpus) if first is not None else "",
        "BATON_DECODE_TP": str(second.copy.capacity.gpus),
        "BATON_QUANTIZATION": form.weights if form.weights != DEFAULT_QUANTIZATION else "",
        "BATON_KV_DTYPE": form.kv if form.kv != DEFAULT_KV_DTYPE else "",
        "BATON_SLO": _objective(load),
        "BATON_STEP_MS": _step_ms(load),
    }
    return " ".join(
        f"{name}={value}"
        for name, value in values.items()
        if value not in ("", "1") or name in ("BATON_PREFILL", "BATON_DECODE")
    )
