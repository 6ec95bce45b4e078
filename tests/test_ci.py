"""What continuous integration installs is all that the tests start, beside what every Debian has."""

import ast
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EVERYWHERE = {"bash", "sh", "cat", "dirname", "env", "grep", "nsenter", "sleep", "test", "true", "unshare"}  # essential
SYSTEM = "/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin"
# by a package that is installed for another program
BROUGHT_ALONG = {"redis-cli": "redis-server", "dumpcap": "tshark", "promtool": "prometheus"}


def started() -> Iterator[str]:
    """The programs that tests look for, or that the first word of a list in them names."""
    for path in (ROOT / "tests").rglob("*.py"):
        text = path.read_text()
        if path == Path(__file__) or "fuzz" in path.parts or not re.search(r"subprocess|which\(|need_root_and", text):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.List) and node.elts and isinstance(node.elts[0], ast.Constant):
                yield str(node.elts[0].value)
            elif isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if name == "which" and isinstance(node.args[0], ast.Constant):
                    yield str(node.args[0].value)
                elif name == "need_root_and":
                    yield from (word.arg for word in node.keywords if word.arg)


def test_ci_installs_every_program_that_tests_start() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    installed = {pair.partition(":")[0] for pair in re.findall(r"[\w.-]+:[\w.-]+", script.split("for pair in")[1])}
    page = (ROOT / "docs" / "api.md").read_text()
    commands = re.findall(r"^```bash[^\n]*\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    first = {word for block in commands for word in re.findall(r"(?:^|\| )([a-z]\w+) ", block, re.MULTILINE)}
    programs = {name for name in {*started(), *first} if "/" not in name and shutil.which(name, path=SYSTEM)}
    assert {"chromium", "curl", "ip", "tshark"} <= programs
    assert {BROUGHT_ALONG.get(name, name) for name in programs - EVERYWHERE} - installed == set()
