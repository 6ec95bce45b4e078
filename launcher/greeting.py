"""Writes what `baton up` prints when everything is ready: where it is, and a line that can be pasted."""

import json
import shlex
from pathlib import Path

from contracts.errors import GatewayError
from infra.completions_client import CompletionsClient
from infra.network.listening import http_url, is_local
from infra.process.hub_kernels import notice
from launcher.options import DEMO_MODEL, UpConfig

ENDING = "Ctrl-C stops everything."
PATIENCE = 5.0  # s
QUESTION = "Tell me a story about a fox."
TOOL_QUESTION = "What is the weather in Paris?"
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def open_to_all(config: UpConfig) -> str:
    """Returns a warning where others reach the endpoint and need no key; else nothing."""
    if config.api_keys or is_local(config.host):
        return ""
    return (
        f"--host {config.host}: whoever reaches this address may ask, and see the dashboard, for no key is needed;"
        " --api-keys FILE asks for one (./baton key new NAME)"
    )


def text(
    config: UpConfig, url: str, directory: Path | None, seconds: float, log: Path, key: str = "", ending: str = ENDING
) -> str:
    """Writes the lines below the stages; `seconds` is the time that the start took, `key` the instance's own API key.

    That key is not among them: what can be pasted has its user's, from the environment.
    """
    lines = ["", f"Ready after {seconds:.1f} s.", f"  endpoint   {url}/v1"]
    if config.dashboard_port:
        lines.append(f"  dashboard  {http_url(config.host, config.dashboard_port, bool(config.tls_cert))}")
    lines.append(f"  log        {log}")
    if theirs := notice():
        lines += ["", f"{theirs}."]
    model = model_name(url, key, config.tls_cert)
    more = f" --cacert {shlex.quote(config.tls_cert)}" if config.tls_cert else ""
    more += ' -H "Authorization: Bearer $BATON_API_KEY"' if config.api_keys else ""
    lines += ["", "Try it:", curl_line(url, model, directory, more)]
    if directory is not None and "tools" in chat_template(directory):
        lines += ["", "or with a tool to call:", tool_line(url, model, more)]
    chat = "./baton chat"
    lines += ["", f"or {chat} in another terminal. {ending}"]
    return "\n".join(lines)


def curl_line(url: str, model: str, directory: Path | None, more: str = "") -> str:
    """Writes a request that the model can answer: a chat where it has a chat template, else a completion."""
    if directory is None or chat_template(directory):
        return _curl(f"{url}/v1/chat/completions", {"model": model, "messages": [_asked(QUESTION)]}, more)
    return _curl(f"{url}/v1/completions", {"model": model, "prompt": "Once upon a time", "max_tokens": 32}, more)


def tool_line(url: str, model: str, more: str = "") -> str:
    """Writes a request that the model answers by calling a tool."""
    return _curl(
        f"{url}/v1/chat/completions", {"model": model, "messages": [_asked(TOOL_QUESTION)], "tools": [TOOL]}, more
    )


def _asked(question: str) -> dict[str, str]:
    return {"role": "user", "content": question}


def _curl(url: str, body: dict[str, object], more: str) -> str:
    return f"curl -s {url}{more} -H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"


def chat_template(directory: Path) -> str:
    """Returns how the model directory says that a chat is put into a prompt; empty: it does not say."""
    paths = [directory / "chat_template.jinja", *sorted((directory / "additional_chat_templates").glob("*.jinja"))]
    try:
        if files := "".join(path.read_text(encoding="utf-8") for path in paths if path.is_file()):
            return files
        settings = json.loads((directory / "tokenizer_config.json").read_bytes())
    except (OSError, ValueError):
        return ""
    found = settings.get("chat_template") if isinstance(settings, dict) else None
    return found if isinstance(found, str) else json.dumps(found) if found else ""  # some models have several


def model_name(url: str, key: str = "", cert: str = "") -> str:
    """Returns the name that the gateway serves the model under; the demo model's directory if it does not say."""
    try:
        return CompletionsClient(url, silence=PATIENCE, key=key, cert=cert).model()
    except GatewayError:
        return Path(DEMO_MODEL).name
