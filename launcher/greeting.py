"""Writes what `baton up` prints when everything is ready: where it is, and a line that can be pasted."""

import json
import shlex
from pathlib import Path

from core.completions_client import Endpoint
from core.errors import GatewayError
from core.hub_kernels import notice
from core.listening import http_url
from launcher.options import DEMO_MODEL, UpConfig

PATIENCE = 5.0  # s
QUESTION = "Tell me a story about a fox."


def text(config: UpConfig, url: str, directory: Path | None, seconds: float, log: Path) -> str:
    """Writes the lines below the stages; `seconds` is the time that the start took."""
    lines = ["", f"Ready after {seconds:.1f} s.", f"  endpoint   {url}/v1"]
    if config.dashboard_port:
        lines.append(f"  dashboard  {http_url(config.host, config.dashboard_port)}")
    lines.append(f"  log        {log}")
    if theirs := notice():
        lines += ["", f"{theirs}."]
    lines += ["", "Try it:", curl_line(url, model_name(url), directory)]
    chat = "./baton chat"
    lines += ["", f"or {chat} in another terminal. Ctrl-C stops everything."]
    return "\n".join(lines)


def curl_line(url: str, model: str, directory: Path | None) -> str:
    """Writes a request that the model can answer: a chat where it has a chat template, else a completion."""
    if directory is None or has_chat_template(directory):
        path = "/v1/chat/completions"
        body: dict[str, object] = {"model": model, "messages": [{"role": "user", "content": QUESTION}]}
    else:
        path = "/v1/completions"
        body = {"model": model, "prompt": "Once upon a time", "max_tokens": 32}
    data = shlex.quote(json.dumps(body))
    return f"curl -s {url}{path} -H 'Content-Type: application/json' -d {data}"


def has_chat_template(directory: Path) -> bool:
    """Tells whether the model directory says how a chat is put into a prompt."""
    if (directory / "chat_template.jinja").is_file():
        return True
    try:
        settings = json.loads((directory / "tokenizer_config.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(settings, dict) and bool(settings.get("chat_template"))


def model_name(url: str) -> str:
    """Returns the name that the gateway serves the model under; the demo model's directory if it does not say."""
    try:
        return Endpoint(url, silence=PATIENCE).model()
    except GatewayError:
        return Path(DEMO_MODEL).name
