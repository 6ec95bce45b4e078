"""Writes the greeting of `baton up`: addresses, and a request to paste."""

import json
import shlex
from pathlib import Path

from checkpoints.pooling import read_pooling
from contracts.errors import GatewayError
from contracts.pooling import Pooling
from infra.completions_client import CompletionsClient
from infra.network.listening import http_url, is_local
from infra.process.hub_kernels import notice
from launcher.options import DEMO_MODEL, UpConfig

STOP_NOTE = "Ctrl-C stops everything."
MODEL_NAME_TIMEOUT_S = 5.0
EXAMPLE_QUESTION = "Tell me a story about a fox."
EXAMPLE_TOOL_QUESTION = "What is the weather in Paris?"
EXAMPLE_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def open_to_all(config: UpConfig) -> str:
    """Returns a warning if other hosts reach the endpoint without a key, else ''."""
    if config.api_keys or is_local(config.host):
        return ""
    return (
        f"--host {config.host}: whoever reaches this address may ask, and see the dashboard, for no key is needed;"
        " --api-keys FILE asks for one (./baton key new NAME)"
    )


def text(
    config: UpConfig,
    url: str,
    directory: Path | None,
    seconds: float,
    log: Path,
    key: str = "",
    ending: str = STOP_NOTE,
) -> str:
    """Writes the lines below the stages. `seconds`: duration of the start; `key`: the instance's operator key.

    The request to paste does not contain that key, but the user's, from the environment.
    """
    lines = ["", f"Ready after {seconds:.1f} s.", f"  endpoint   {url}/v1"]
    if config.dashboard_port:
        lines.append(f"  dashboard  {http_url(config.host, config.dashboard_port, bool(config.tls_cert))}")
    lines.append(f"  log        {log}")
    if foreign_kernels := notice():
        lines += ["", f"{foreign_kernels}."]
    model = model_name(url, key, config.tls_cert)
    more = f" --cacert {shlex.quote(config.tls_cert)}" if config.tls_cert else ""
    more += ' -H "Authorization: Bearer $BATON_API_KEY"' if config.api_keys else ""
    pooling = read_pooling(directory, config.engine) if directory is not None else None
    if pooling is not None:
        return "\n".join([*lines, "", "Try it:", pooled_line(url, model, pooling, more), "", ending])
    lines += ["", "Try it:", curl_line(url, model, directory, more)]
    if directory is not None and "tools" in chat_template(directory):
        lines += ["", "or with a tool to call:", tool_line(url, model, more)]
    chat = "./baton chat"
    lines += ["", f"or {chat} in another terminal. {ending}"]
    return "\n".join(lines)


def curl_line(url: str, model: str, directory: Path | None, more: str = "") -> str:
    """Returns a curl command: a chat if the model has a chat template, else a completion."""
    if directory is None or chat_template(directory):
        return _curl(
            f"{url}/v1/chat/completions", {"model": model, "messages": [_user_message(EXAMPLE_QUESTION)]}, more
        )
    return _curl(f"{url}/v1/completions", {"model": model, "prompt": "Once upon a time", "max_tokens": 32}, more)


def pooled_line(url: str, model: str, pooling: Pooling, more: str = "") -> str:
    """Returns a curl command that asks for a vector, or for scores of documents."""
    if pooling.task == "embed":
        return _curl(f"{url}/v1/embeddings", {"model": model, "input": EXAMPLE_QUESTION}, more)
    documents = ["A fox told a story.", "It rained in Paris."]
    return _curl(f"{url}/v1/rerank", {"model": model, "query": EXAMPLE_TOOL_QUESTION, "documents": documents}, more)


def tool_line(url: str, model: str, more: str) -> str:
    """Returns a curl command whose answer calls a tool."""
    return _curl(
        f"{url}/v1/chat/completions",
        {"model": model, "messages": [_user_message(EXAMPLE_TOOL_QUESTION)], "tools": [EXAMPLE_TOOL]},
        more,
    )


def _user_message(question: str) -> dict[str, str]:
    return {"role": "user", "content": question}


def _curl(url: str, body: dict[str, object], more: str) -> str:
    return f"curl -s {url}{more} -H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"


def chat_template(directory: Path) -> str:
    """Returns the chat template of a model directory, or ''."""
    paths = [directory / "chat_template.jinja", *sorted((directory / "additional_chat_templates").glob("*.jinja"))]
    try:
        if files := "".join(path.read_text(encoding="utf-8") for path in paths if path.is_file()):
            return files
        settings = json.loads((directory / "tokenizer_config.json").read_bytes())
    except (OSError, ValueError):
        return ""
    found = settings.get("chat_template") if isinstance(settings, dict) else None
    return found if isinstance(found, str) else json.dumps(found) if found else ""  # a list for some models


def model_name(url: str, key: str, cert: str) -> str:
    """Returns the gateway's name of the model, or the demo model's if the gateway does not answer."""
    try:
        return CompletionsClient(url, silence=MODEL_NAME_TIMEOUT_S, key=key, cert=cert).model()
    except GatewayError:
        return Path(DEMO_MODEL).name
