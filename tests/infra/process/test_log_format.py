"""One form of log lines for all services: as text and as JSON, with time zone, service and fields."""

import io
import json
import logging
from datetime import datetime

import pytest

from contracts.kinds import LogFormat
from infra.process.log_format import LogLine, ServiceFormatter
from infra.process.log_lines import ACCESS_LOGGER, MAX_LINES, BoundedLog

FIELDS = {"tenant": "a b", "good": True, "ttft_ms": 1.5, "time": "x"}


def lines(form: LogFormat, name: str = "baton.gateway", count: int = 1) -> list[str]:
    out = io.StringIO()
    handler = BoundedLog(out)
    handler.setFormatter(ServiceFormatter("gateway", form))
    log = logging.Logger(name)
    log.addHandler(handler)
    for number in range(count):
        log.warning(
            "request %d", number, extra={"fields": {"tenant": "a b", "good": True, "ttft_ms": 1.5, "time": "x"}}
        )
    try:
        raise ValueError("broken")
    except ValueError:
        log.exception("it failed")
    return out.getvalue().splitlines()


def test_a_text_line_has_its_zone_its_service_and_its_fields() -> None:
    line = lines("text")[0]
    stamp, level, service, rest = line.split(" ", 3)
    assert datetime.fromisoformat(stamp).utcoffset() is not None
    assert (level, service) == ("WARNING", "gateway:")
    assert rest == 'request 0 tenant="a b" good=true ttft_ms=1.5 time=x'


def test_each_json_line_is_one_object_even_with_a_traceback() -> None:
    first, second = map(json.loads, lines("json"))
    assert (first["level"], first["service"], first["message"]) == ("warning", "gateway", "request 0")
    assert (first["tenant"], first["good"], first["ttft_ms"]) == ("a b", True, 1.5)
    assert datetime.fromisoformat(first["time"]).utcoffset() is not None  # a field cannot take the place of the time
    assert second["message"].startswith("it failed\nTraceback") and "ValueError: broken" in second["message"]


@pytest.mark.parametrize("value", ["", "a b", 'a"b', "a=b", "line\nbreak"])
def test_a_value_cannot_pretend_to_be_another_field(value: str) -> None:
    text = LogLine(0.0, "INFO", "s", "m", {"tenant": value, "next": 1}).text()
    assert text.endswith(f"m tenant={json.dumps(value)} next=1") and "\n" not in text


def test_lines_of_the_access_log_are_not_left_out() -> None:
    assert len([line for line in lines("text", ACCESS_LOGGER, 3 * MAX_LINES) if " request " in line]) == 3 * MAX_LINES
    assert len([line for line in lines("text", "other", 3 * MAX_LINES) if " request " in line]) == MAX_LINES
