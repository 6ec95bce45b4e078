"""`baton unit` prints a unit of systemd, and a started instance tells systemd that it is ready."""

import configparser
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.commands.unit import quoted
from launcher.host.service_manager import SOCKET_VARIABLE, notify
from launcher.options import ROOT
from tests.waiting import DEADLINE_S


def test_the_unit_runs_up_with_the_same_options(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["unit", "--port", "18080", "--drain-seconds=120", "--model", str(ROOT)]) == 0
    text = capsys.readouterr().out
    found = configparser.ConfigParser(interpolation=None)
    found.optionxform = str  # type: ignore[assignment, method-assign]
    found.read_string(text)
    service = found["Service"]
    assert service["ExecStart"] == f"{ROOT}/baton up --port 18080 --drain-seconds=120 --model {ROOT}"
    assert service["WorkingDirectory"] == str(tmp_path)
    assert (service["Type"], service["RestartPreventExitStatus"], service["KillMode"]) == ("notify", "2", "mixed")
    assert float(service["TimeoutStopSec"]) > 2 * 120, "the gateway drains, and then the workers"
    if analyze := shutil.which("systemd-analyze"):
        (tmp_path / "baton.service").write_text(text)
        subprocess.run([analyze, "verify", str(tmp_path / "baton.service")], check=True)


def test_words_are_quoted_for_systemd() -> None:
    words = ["--model", "a b", "50%", "$HOME", 'say "x"', ""]
    assert [quoted(word) for word in words] == ["--model", '"a b"', "50%%", "$$HOME", '"say \\"x\\""', '""']


@pytest.mark.parametrize("words", [["--port=x"], ["--on=ray"]])
def test_options_that_no_unit_can_run_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["unit", *words]) == 2
    assert capsys.readouterr().err.startswith(f"error: {words[0].partition('=')[0]}: ")


@pytest.mark.parametrize("abstract", [False, True])
def test_a_state_is_one_datagram(abstract: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"baton-{tmp_path.name}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name if abstract else name)
        manager.settimeout(DEADLINE_S)
        monkeypatch.setenv(SOCKET_VARIABLE, "@" + name if abstract else name)
        notify("READY=1")
        assert manager.recv(64) == b"READY=1"
    notify("STOPPING=1")  # nobody listens any more
