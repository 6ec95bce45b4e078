"""Talks to a running instance in the terminal (`baton chat`); Ctrl-C stops an answer, Ctrl-D leaves."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from contracts.errors import BatonError, ConfigError, GatewayError
from contracts.slo import Timings
from infra.cli import parse
from infra.completions_client import CompletionsClient
from infra.process.dying import die_with
from launcher.instance.endpoint import endpoint_of, running_instance
from launcher.instance.instances import Instance, running
from launcher.options import DEMO_MODEL, ROOT, ChatConfig
from launcher.refusal import refused
from launcher.words import INTERRUPTED_STATUS

with suppress(ImportError):  # missing in some builds of Python
    import readline  # noqa: F401 - gives input() a history and line editing

HELP = """\
/help  this list        /new  start a new conversation        /quit  leave (or Ctrl-D)
Ctrl-C stops an answer that is being written."""
SMALLEST = ("--port=0", "--dashboard-port=0", "--prefill=0", "--decode=1")
"""Options of an instance for one user: no dashboard, and one worker, which serves whole requests."""
START_POLL_S = 0.2
STOP_TIMEOUT_S = 60.0  # for a hung instance; `up` bounds its own stop
DIM, PLAIN = "\x1b[2m", "\x1b[0m"


def chat(arguments: Sequence[str]) -> int:
    """Runs a chat. Returns the exit status: 0 left by the user, 1 the endpoint failed, 2 bad input."""
    try:
        config = parse(ChatConfig, arguments, "baton chat")
    except ConfigError as error:
        return refused(error)
    with ExitStack() as stack:
        try:
            endpoint = _endpoint(config, stack)
            return ChatSession(endpoint, endpoint.model(), config, sys.stdin.isatty()).run()
        except (BatonError, NotStarted) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print()
            return INTERRUPTED_STATUS


def _endpoint(config: ChatConfig, stack: ExitStack) -> CompletionsClient:
    """Finds the endpoint, its key and its certificate. Raises `BatonError`."""
    if config.alone:
        found: Instance | None = stack.enter_context(private_instance(config.alone, config.idle_unload))
    else:
        found = None if config.url else running_instance() or _offer(stack)
    if found is None and not config.url:
        raise GatewayError("no instance is running; start one with ./baton up, or name one with --url")
    return endpoint_of(found.url if found else config.url, found, config.api_key_file, config.cert).client()


def _offer(stack: ExitStack) -> Instance | None:
    """Offers to start an instance for the time of the chat. Returns None if the user declines."""
    if not sys.stdin.isatty():
        return None
    try:
        answer = input("No instance is running. Start one with the demo model for this chat? [Y/n] ")
    except EOFError:
        return None
    return None if answer.strip().lower().startswith("n") else stack.enter_context(private_instance(DEMO_MODEL))


class NotStarted(Exception):
    """The instance ended before it was ready, and has printed why."""


@contextmanager
def private_instance(model: str, idle_unload: float = 0.0) -> Iterator[Instance]:
    """Starts the smallest `baton up` on a free port, yields it, and stops it on exit. Raises `NotStarted`.

    `idle_unload`: minutes, as for `up`.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "launcher", "up", f"--model={model}", f"--idle-unload={idle_unload}", *SMALLEST],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C in the chat stops an answer, not the instance
        preexec_fn=die_with(os.getpid()),
    )
    try:
        while True:
            mine = [instance for instance in running() if instance.pid == process.pid]
            if mine:
                break
            if process.poll() is not None:
                raise NotStarted("the instance did not start")
            time.sleep(START_POLL_S)
        yield mine[0]
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class ChatSession:
    """The messages so far, and the loop that answers the user's lines."""

    def __init__(self, endpoint: CompletionsClient, model: str, config: ChatConfig, interactive: bool) -> None:
        self._endpoint = endpoint
        self._model = model
        self._config = config
        self._interactive = interactive
        self._messages: list[dict[str, str]] = []

    def run(self) -> int:
        """Answers lines until the end of input; returns 1 if the last answer failed, else 0."""
        if self._interactive:
            print(f"{self._model} at {self._endpoint.url}; /help lists the commands")
        status = 0
        while (line := self._read()) is not None:
            match line.strip():
                case "":
                    continue
                case "/quit":
                    return 0
                case "/new":
                    self._messages.clear()
                case "/help":
                    print(HELP)
                case command if command.startswith("/") and " " not in command:
                    print(f"there is no command {command}\n{HELP}", file=sys.stderr)
                case text:
                    status = self._say(text)
        return status

    def _read(self) -> str | None:
        """Returns the next line, or None at the end of input. Ctrl-C clears the line."""
        try:
            return input("> " if self._interactive else "")
        except EOFError:
            if self._interactive:
                print()
            return None
        except KeyboardInterrupt:
            if not self._interactive:
                raise
            print()
            return ""

    def _say(self, text: str) -> int:
        self._messages.append({"role": "user", "content": text})
        request = {
            "model": self._model,
            "messages": self._messages,
            "max_tokens": self._config.max_tokens,
            "temperature": self._config.temperature,
        }
        answer = ""
        pieces = 0
        tokens: int | None = None
        sent = first = last = time.monotonic()
        chunks = self._endpoint.stream("/v1/chat/completions", request)
        try:
            for chunk in chunks:
                tokens = chunk.tokens or tokens
                if chunk.text:
                    last = time.monotonic()
                    first = last if not pieces else first
                    pieces += 1
                    answer += chunk.text
                    print(chunk.text, end="", flush=True)
            print()
        except KeyboardInterrupt:
            if not self._interactive:
                raise
            print(" …")
        except GatewayError as error:
            print("\n" if answer else "", end="", flush=True)
            print(f"error: {error}", file=sys.stderr)
            self._messages.pop()
            return 1
        finally:
            chunks.close()
        self._messages.append({"role": "assistant", "content": answer})
        if self._interactive and pieces:
            timings = Timings(1000 * (first - sent), 1000 * (last - sent), tokens or pieces)
            print(f"{DIM}{timings_line(timings)}{PLAIN}")
        return 0


def timings_line(timings: Timings) -> str:
    """Formats `TTFT 41 ms · TPOT 12.3 ms · 87 tokens`; an answer of one token has no TPOT."""
    parts = [f"TTFT {timings.ttft_ms:.0f} ms"]
    if timings.output_tokens > 1:
        parts.append(f"TPOT {timings.tpot_ms():.1f} ms")
    parts.append(f"{timings.output_tokens} token{'s' if timings.output_tokens != 1 else ''}")
    return " · ".join(parts)
