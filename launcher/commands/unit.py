"""Prints a systemd unit that runs `baton up` (`baton unit`)."""

import os
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from contracts.errors import ConfigError
from infra.cli import parse
from launcher.host.processes import host_deployment
from launcher.options import ROOT, UnitConfig
from launcher.refusal import refusing

STOP_MARGIN_S = 10.0
UNIT = """\
# For this user:  ./baton unit OPTIONS > ~/.config/systemd/user/baton.service; systemctl --user daemon-reload;
#                 systemctl --user enable --now baton; loginctl enable-linger keeps it running without a login.
# For the host:   /etc/systemd/system/baton.service, with User= and WantedBy=multi-user.target.
[Unit]
Description=Baton, a server of language models
Wants=network-online.target
After=network-online.target

[Service]
Type=notify
NotifyAccess=main
ExecStart={command}
WorkingDirectory={directory}
# HF_TOKEN=… and BATON_… settings, one a line
EnvironmentFile=-%E/baton/environment
# The first start installs packages; each start loads the model.
TimeoutStartSec=infinity
# The launcher stops its services in order; the time is that of their drains.
KillMode=mixed
TimeoutStopSec={stop_seconds:.0f}
Restart=on-failure
RestartSec=5
# A setting that cannot work does not work the second time either.
RestartPreventExitStatus=2
NoNewPrivileges=yes

[Install]
WantedBy=default.target
"""


@refusing
def unit(arguments: Sequence[str]) -> int:
    """Prints the unit for these options of `up`; returns the exit status: 2 for bad input."""
    config = parse(UnitConfig, arguments, "baton unit", os.environ)
    if config.on == "ray":
        raise ConfigError("--on", config.on, "a unit runs an instance of this host; --detach leaves one on Ray")
    command = " ".join(map(quoted, (str(ROOT / "baton"), "up", *arguments)))
    print(
        UNIT.format(command=command, directory=str(Path.cwd()).replace("%", "%%"), stop_seconds=_stop_seconds(config)),
        end="",
    )
    return 0


def quoted(word: str) -> str:
    """Quotes a word of a command for systemd.service(5), which reads %, $, quotes and backslashes."""
    word = word.replace("%", "%%").replace("$", "$$")
    plain = word and not any(letter.isspace() or letter in "\"\\'" for letter in word)
    return word if plain else '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _stop_seconds(config: UnitConfig) -> float:
    """Returns the longest time in which the groups of services stop, one after the other."""
    settled = host_deployment(replace(config, prefill=config.prefill or 1, decode=config.decode or 1))
    grace = {name: service.grace for service in settled.services for name in service.names}
    return STOP_MARGIN_S + sum(max((grace[name] for name in group), default=0.0) for group in settled.stop_order())
