"""The commands of docs/operations.md, Several hosts, pasted into shells on two hosts that are network namespaces."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from launcher.options import ROOT
from tests.e2e.harness.host import Host, need_root_and
from tests.e2e.harness.two_hosts import ADDRESSES, DEVICE, two_hosts
from tests.waiting import DEADLINE_S, LONG_DEADLINE_S, wait_until

NOTHING_NEW = {"PIP_NO_INDEX": "1"}  # a `.venv` that is not up to date is no reason to change it here
PAGE = {"10.0.0.1": ADDRESSES[0], "10.0.0.2": ADDRESSES[1], "eth0": DEVICE}  # what the page says, and what is here


def blocks() -> list[str]:
    page = (ROOT / "docs" / "operations.md").read_text()
    section = page.split("\n## Several hosts\n")[1].split("\n## ")[0]
    found = re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    for said, here in PAGE.items():
        found = [block.replace(said, here) for block in found]
    return found


def checkout(folder: Path) -> Path:
    """A folder with what is in this one, in which commands may leave files. Its `baton` finds the installed `.venv`."""
    folder.mkdir()
    for path in ROOT.iterdir():
        if path.name != "secret":
            folder.joinpath(path.name).symlink_to(path)
    folder.joinpath("baton").unlink()
    folder.joinpath("baton").write_bytes(ROOT.joinpath("baton").read_bytes())
    folder.joinpath("baton").chmod(0o755)
    return folder


@contextmanager
def pasted(commands: str, host: Host, folder: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with host.inside(), log.open("wb") as out:
        shell = subprocess.Popen(
            ["bash", "-c", f"{commands}\nwait"],
            cwd=folder,
            env={**{name: each for name, each in os.environ.items() if name != "PYTHONPATH"}, **NOTHING_NEW},
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield shell
    finally:
        os.killpg(shell.pid, signal.SIGTERM)
        shell.wait(DEADLINE_S)
        wait_until(lambda: not lives(shell.pid), "the services that the shell has started to end", DEADLINE_S)


def lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_pages_commands_make_a_deployment(tmp_path: Path) -> None:
    need_root_and(ip="iproute2", curl="curl", openssl="openssl")
    first, second, anywhere = blocks()
    folder, logs = checkout(tmp_path / "baton"), [tmp_path / "first", tmp_path / "second"]
    with (
        two_hosts(0.0, 0.0) as hosts,
        pasted(first, hosts.a, folder, logs[0]) as one,
        pasted(second, hosts.b, folder, logs[1]) as other,
    ):

        def found_by_the_gateway() -> bool:
            said = [log.read_text() for log in logs]
            assert one.poll() is None and other.poll() is None, f"all services of a host have ended: {said}"
            assert not any(re.search(r"^error: ", each, re.MULTILINE) for each in said), f"a service has ended: {said}"
            there = zip(("prefill", "decode"), ADDRESSES, strict=True)
            return all(re.search(rf"found {role} worker \w+ at tcp://{at}:20000\n", said[0]) for role, at in there)

        wait_until(found_by_the_gateway, f"both workers in {logs[0]}", LONG_DEADLINE_S)
        with hosts.b.inside():
            asked = subprocess.run(["bash", "-c", anywhere], capture_output=True, text=True, timeout=LONG_DEADLINE_S)
    assert asked.returncode == 0 and '"object":"text_completion"' in asked.stdout, asked
