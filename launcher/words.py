"""Answers commands that need no installation: help, and words that no command knows.

Only the standard library: `./baton` asks this module before anything is installed.
"""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from contracts.version import BATON_VERSION
from infra.spelling import suggestion

HELP = """\
Baton serves large language models with prefill and decode split into two services.

  ./baton up         start everything on this host, and stop it with Ctrl-C
  ./baton chat       talk to the running instance
  ./baton bench      put a load on an endpoint, and measure TTFT, TPOT and goodput
  ./baton plan       name the cheapest deployment that keeps an objective, without a GPU: devices, workers, dollars
  ./baton simulate   simulate a deployment under a load, without a GPU: TTFT, TPOT and goodput
  ./baton status     show the instances on this host, or with --on ray the deployment on a Ray cluster
  ./baton logs       print the log of the running instance, or of one of its services
  ./baton restart    end a worker or a gateway of the running instance when it has drained, and start it again
  ./baton down       stop the running instance, or with --on ray the deployment on a Ray cluster
  ./baton config     print the settings that `up` would take, and where each is from
  ./baton models     list the models in this user's cache: sizes and formats
  ./baton pull       download a model from the Hugging Face hub, such as ./baton pull Qwen/Qwen3-0.6B
  ./baton key        make, list and revoke the keys that clients need
  ./baton run        run one service of a deployment over several hosts, such as ./baton run decode
  ./baton ray        run Ray's own command line, such as ./baton ray start --head
  ./baton compose    print compose.yaml, for Docker Compose on one host
  ./baton manifests  print manifests, for Kubernetes
  ./baton unit       print a systemd unit that runs `up` with the same options
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

`./baton COMMAND --help` describes a command's options; `./baton --version` prints the version.
"""
COMMANDS = tuple(dict.fromkeys(re.findall(r"^  \./baton (\w+)  ", HELP, re.MULTILINE)))
BAD_INPUT_STATUS, INTERRUPTED_STATUS = 2, 130
"""Exit statuses; the second as shells have it for SIGINT."""
PASS_THROUGH = (["ray"], ["test"], ["run", "redis"])  # these take options of Ray, of pytest, and of a Redis server
VALUED_TEST_OPTIONS = ("-k", "-m", "-p", "-n", "-o", "-c", "-W", "--ignore", "--deselect", "--junitxml", "--basetemp")
"""Options of pytest whose value is the next word, which may look like a path."""
PATH_PATTERN = re.compile(r"/|::|\.py$")
FIELD_PATTERN = re.compile(r"^    ([a-z]\w*): ", re.MULTILINE)


def answer(arguments: Sequence[str], root: Path) -> tuple[int, str] | None:
    """Returns exit status and text if the words alone decide, else None; `root`: folder of the packages."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        return 0, HELP
    command, *words = arguments
    if command == "--version":
        return 0, f"baton {BATON_VERSION}\n"
    if command not in COMMANDS:
        names = ", ".join(COMMANDS)
        near = suggestion(command, COMMANDS)
        return BAD_INPUT_STATUS, f"error: {command!r} is no command of baton{near}; there are: {names}\n"
    passes_through = any(list(arguments[: len(begins)]) == begins for begins in PASS_THROUGH)
    error = _wrong_test(words, root) if command == "test" else "" if passes_through else _unknown(words, root)
    return (BAD_INPUT_STATUS, f"error: {error}\n") if error else None


def _wrong_test(words: Sequence[str], root: Path) -> str:
    """Returns a sentence about a word that is no option and no file of tests, or ''."""
    for before, word in zip(("", *words), words, strict=False):
        if word != "--help" and get_close_matches(word, ["--help"], cutoff=0.8):
            return f"{word}: no such option; --help explains"
        of_option = before.startswith("-") and (before in VALUED_TEST_OPTIONS or not PATH_PATTERN.search(word))
        path = word.partition("::")[0]
        if not word.startswith("-") and not of_option and not (root / path).exists():
            tests = [str(each.relative_to(root)) for each in (root / "tests").rglob("*") if "__" not in each.name]
            return f"{path}: there are no such tests{suggestion(path.rstrip('/'), tests)}"
    return ""


def _unknown(words: Sequence[str], root: Path) -> str:
    """Returns a sentence about an option that no command has, or ''."""
    given = [word.partition("=")[0] for word in words if re.match(r"--\w", word)]
    fields = {"help", "help_all", "config"}
    for source in (*root.glob("infra/**/*.py"), *root.glob("launcher/**/*.py")) if given else ():
        fields.update(FIELD_PATTERN.findall(source.read_text()))
    options = ["--" + field.replace("_", "-") for field in fields]
    unknown = next((word for word in given if word not in options), "")
    return f"{unknown}: no such option{suggestion(unknown, options)}; --help lists them" if unknown else ""
