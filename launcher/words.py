"""Answers commands that need no installation: help, and words that no command knows.

Only the standard library: `./baton` asks this module before anything is installed.
"""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

HELP = """\
Baton serves large language models with prefill and decode split into two services.

  ./baton up         start everything on this host, and stop it with Ctrl-C
  ./baton chat       talk to the running instance
  ./baton bench      put a load on an endpoint, and measure TTFT, TPOT and goodput
  ./baton plan       name the cheapest deployment that keeps an objective, without a GPU: devices, workers, dollars
  ./baton simulate   simulate a deployment under a load, without a GPU: TTFT, TPOT and goodput
  ./baton status     show the instances on this host, or with --on ray the deployment on a Ray cluster
  ./baton key        make, list and revoke the keys that clients need
  ./baton run        run one service of a deployment over several hosts, such as ./baton run decode
  ./baton down       end the deployment on a Ray cluster, and leave nothing of it
  ./baton ray        run Ray's own command line, such as ./baton ray start --head
  ./baton compose    print compose.yaml, for Docker Compose on one host
  ./baton manifests  print manifests, for Kubernetes
  ./baton operators  list the compiled operators for CPUs, or compile them for hosts without a C compiler
  ./baton test       run ruff, mypy and the tests; further arguments go to pytest

Examples:
  ./baton up                                       the demo model, at http://127.0.0.1:8000/v1
  ./baton up --model Qwen/Qwen3-0.6B               a model from the Hugging Face hub
  ./baton up --model ~/models/mine --prefill 2     two prefill workers and one decode worker
  ./baton up --port 18080 --dashboard-port 0       another port, no dashboard
  ./baton up --on ray --prefill 2 --decode 2       spread over the Ray cluster that this host is a node of
  ./baton chat --url http://127.0.0.1:18080
  ./baton bench --find-goodput --prompt-tokens 512 --output-tokens 64
  ./baton test -k launcher

`./baton COMMAND --help` lists a command's options.
"""
COMMANDS = tuple(dict.fromkeys(re.findall(r"^  \./baton (\w+)  ", HELP, re.MULTILINE)))
BAD_INPUT = 2
PASS_THROUGH = (["ray"], ["test"], ["run", "redis"])  # these take options of Ray, of pytest, and of a Redis server
FIELD_PATTERN = re.compile(r"^    ([a-z]\w*): ", re.MULTILINE)


def answer(arguments: Sequence[str], root: Path) -> tuple[int, str] | None:
    """Returns exit status and text if the words alone decide, else None; `root`: folder of the packages."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        return 0, HELP
    command, *words = arguments
    if command not in COMMANDS:
        names = ", ".join(COMMANDS)
        return BAD_INPUT, f"error: {command!r} is no command of baton; there are: {names}\n"
    for word in words:
        if command == "test" and word != "--help" and get_close_matches(word, ["--help"], cutoff=0.8):
            return BAD_INPUT, f"error: {word}: no such option; --help explains\n"
    passes_through = any(list(arguments[: len(begins)]) == begins for begins in PASS_THROUGH)
    if not passes_through and (unknown := _unknown(words, root)):
        return BAD_INPUT, f"error: {unknown}: no such option; --help lists them\n"
    return None


def _unknown(words: Sequence[str], root: Path) -> str:
    given = [word.partition("=")[0] for word in words if re.match(r"--\w", word)]
    fields = {"help"}
    for source in (*root.glob("infra/**/*.py"), *root.glob("launcher/**/*.py")) if given else ():
        fields.update(FIELD_PATTERN.findall(source.read_text()))
    return next((word for word in given if word[2:].replace("-", "_") not in fields), "")
