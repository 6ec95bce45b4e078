"""Makes, lists and revokes API keys (`baton key`). Running services read a changed file within two seconds."""

import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from contracts.errors import ConfigError
from contracts.kinds import FilePath
from contracts.slo import parse_objective
from infra.cli import parse
from infra.keys.api_key import NAME_PATTERN, KeyOptions, KeyRecord, make_key
from infra.keys.key_file import KEYS_OPTION, change_keys, read_keys
from launcher.columns import in_columns
from launcher.instance.state_directory import state_directory
from launcher.refusal import refusing

HELP = """\
Makes and revokes the keys that clients send, as Authorization: Bearer KEY or as x-api-key: KEY.

  ./baton key new NAME       make a key, and print it: it is shown only this time
  ./baton key list           list the keys and their permissions
  ./baton key revoke NAME    remove a key from the file; it is refused within two seconds

Examples:
  ./baton key new alice                                            may ask anything, as a tenant of its own
  ./baton key new app --tenant acme --requests-per-minute 600 --tokens-per-minute 200000 --concurrency 16
  ./baton key new batch --tenant acme --priority 10 --slo ttft=30s
  ./baton key new me --operator                                    sees /metrics, /stats and the dashboard too
  ./baton up --api-keys {path}

The file is {path}, or any other that --api-keys names. It has hashes of the keys, so that
its readers cannot use them. `./baton key new --help` lists the options of a key.
"""
KeyPath = Annotated[FilePath, Meta(description="file of the keys; empty: this user's own, in ~/.local/state/baton")]


class KeyNewConfig(KeyOptions, frozen=True, kw_only=True):
    """Makes an API key: ./baton key new NAME [options]. It is printed once; the file has only a hash of it.

    Example: ./baton key new app --tenant acme --requests-per-minute 600 --slo ttft=2s,tpot=100ms
    """

    api_keys: KeyPath = ""


class KeyFileConfig(Struct, frozen=True, kw_only=True):
    """Names the file of API keys."""

    api_keys: KeyPath = ""


def default_key_file() -> Path:
    return state_directory() / "api-keys.json"


@refusing
def key(arguments: Sequence[str]) -> int:
    """Runs `baton key`. Returns the exit status: 0 done, 2 bad input."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP.format(path=default_key_file()), end="")
        return 0
    action = KEY_ACTIONS.get(arguments[0])
    if action is None:
        raise ConfigError("baton key", arguments[0], f"no such action; there are: {', '.join(KEY_ACTIONS)}")
    action(arguments[1:])
    return 0


def new(arguments: Sequence[str]) -> None:
    """Makes a key and prints it, alone on stdout. Raises `ConfigError`."""
    name, options = _named(arguments, "new")
    config = parse(KeyNewConfig, options, "baton key new")
    if not NAME_PATTERN.fullmatch(name):
        raise ConfigError("NAME", name, "a name has up to 64 letters, digits, dots, dashes and underscores")
    parse_objective(config.slo)
    path = _path(config.api_keys)
    made = make_key(name, config, time.time())

    def added(keys: Sequence[KeyRecord]) -> list[KeyRecord]:
        if any(one.name == name for one in keys):
            raise ConfigError("NAME", name, f"{path} has a key of this name; another name, or `baton key revoke` first")
        return [*keys, made.record]

    change_keys(path, added, create=True)
    print(made.text)
    words = f"The key of {name} ({made.record.owner}) is above, and will not be shown again."
    served = f"./baton up {KEYS_OPTION} {shlex.quote(str(path))}"
    print(f"{words} It is valid where {path} is served: {served}", file=sys.stderr)


def listed(arguments: Sequence[str]) -> None:
    """Prints a line for each key: its public part and its permissions. Raises `ConfigError`."""
    path = _path(parse(KeyFileConfig, arguments, "baton key list").api_keys)
    rows = [("NAME", "TENANT", "KEY", "CREATED", "MAY")]
    for one in read_keys(path):
        made = time.strftime("%Y-%m-%d", time.gmtime(one.created_at))
        rows.append((one.name, one.owner, f"baton-{one.id}-…", made, permissions(one)))
    print("\n".join(in_columns(rows)))


def revoke(arguments: Sequence[str]) -> None:
    """Removes a key from its file. Raises `ConfigError`."""
    name, options = _named(arguments, "revoke")
    path = _path(parse(KeyFileConfig, options, "baton key revoke").api_keys)

    def without(keys: Sequence[KeyRecord]) -> list[KeyRecord]:
        left = [one for one in keys if one.name != name]
        if len(left) == len(keys):
            raise ConfigError("NAME", name, f"{path} has no key of this name; `baton key list` lists them")
        return left

    change_keys(path, without)
    print(f"The key of {name} is revoked.")


KEY_ACTIONS: dict[str, Callable[[Sequence[str]], None]] = {"new": new, "list": listed, "revoke": revoke}


def permissions(one: KeyOptions) -> str:
    """Formats the permissions and limits of a key."""
    bounds = [
        (one.requests_per_minute, "requests/min"),
        (one.tokens_per_minute, "tokens/min"),
        (one.concurrency, "at once"),
    ]
    words = ["operator"] if one.operator else []
    words += [f"{number} {what}" for number, what in bounds if number]
    words += [f"priority {one.priority}"] if one.priority else []
    words += [f"weight {one.weight:g}"] if one.weight != 1 else []
    words += [one.slo] if one.slo else []
    return ", ".join(words) or "anything but operators' paths"


def _named(arguments: Sequence[str], action: str) -> tuple[str, Sequence[str]]:
    """Splits arguments into the name, which comes first, and options. Raises `ConfigError` without a name."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[0], arguments[1:]
    if "--help" in arguments or "-h" in arguments:
        return "", ["--help"]
    raise ConfigError(f"baton key {action}", " ".join(arguments), f"expected ./baton key {action} NAME [options]")


def _path(given: str) -> Path:
    return Path(given).expanduser().absolute() if given else default_key_file()
