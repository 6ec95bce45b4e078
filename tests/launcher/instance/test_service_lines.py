"""The lines of an instance's log have one form, whoever wrote them."""

import json
import os
import subprocess
from datetime import datetime
from pathlib import Path

from infra.process.log_format import LogLine
from launcher.host.redis_server import server_binary
from launcher.instance.service_lines import ServiceLines, is_of

REDIS_LINE = "4711:M 28 Nov 2026 05:24:57.123 # Can't set maximum open files"
OURS = LogLine(5.0, "INFO", "decode", "ready").json()


def test_text_lines_begin_with_their_service_and_those_of_redis_get_our_time() -> None:
    lines = ServiceLines("redis")
    form = lines.formed(REDIS_LINE).decode()
    name, stamp, rest = form.replace(" | ", " ").split(maxsplit=2)
    assert name == "redis" and rest == "WARNING redis: Can't set maximum open files\n"
    at = datetime.fromisoformat(stamp)
    assert at.utcoffset() is not None and at.strftime("%d %H:%M:%S.%f") == "28 05:24:57.123000"
    assert ServiceLines("decode-0").formed("  a traceback's line") == b"decode-0  |   a traceback's line\n"


def test_every_json_line_is_an_object() -> None:
    lines = ServiceLines("redis", "json", lambda: 7.0)
    assert lines.formed(OURS).decode() == OURS + "\n"
    said = [json.loads(lines.formed(text)) for text in (REDIS_LINE, "{no object", "[1]", "error: no model", "")]
    assert [line["level"] for line in said] == ["warning", "info", "info", "error", "info"]
    assert [line["message"] for line in said[1:]] == ["{no object", "[1]", "error: no model", ""]
    assert all(
        line["service"] == "redis" and datetime.fromisoformat(line["time"]).utcoffset() is not None for line in said
    )
    restarted = json.loads(lines.message_line("redis died; it is started again at once", "ERROR"))
    assert (restarted["level"], restarted["message"]) == ("error", "redis died; it is started again at once")


def test_the_real_server_writes_lines_that_are_recognized(tmp_path: Path) -> None:
    """Guards against a new version's form: each line of the embedded server's start is Redis' own form or a picture."""
    server = subprocess.Popen(
        [str(server_binary()), "--port", "0", "--unixsocket", f"{tmp_path}/s", "--save", "", "--dir", str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "TZ": "Asia/Kolkata"},
    )
    try:
        assert server.stdout is not None
        found = [server.stdout.readline().decode().rstrip() for _ in range(3)]
    finally:
        server.kill()
        server.communicate()
    lines = ServiceLines("redis", "json", lambda: 0.0)
    assert any("1970-01-01" not in json.loads(lines.formed(line))["time"] for line in found)


def test_a_services_lines_are_found_in_both_forms() -> None:
    texts = ("plain", OURS.replace('"decode"', '"decode-0 rank 1"'), '{"message": "no \\"service\\":\\"gateway\\""')
    for form in ("text", "json"):
        for line in (ServiceLines("decode-0", form).formed(text) for text in texts):
            assert is_of(line, "decode") and is_of(line, "decode-0")
            assert not any(is_of(line, other) for other in ("decode-1", "dec", "gateway", "decode-0.*"))
