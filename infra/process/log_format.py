"""The form of a log line, the same for all services: as text for people, or as a JSON object for collectors.

Both have the local time with its offset from UTC, the level, and the service. A record may bring fields
(`extra={"fields": {...}}`): `name=value` at the end of a text line, members of a JSON object.
"""

import json
import logging
import re
from collections.abc import Mapping
from datetime import datetime

import msgspec

from contracts.kinds import LogFormat

FieldValue = str | int | float | bool
_PLAIN_REGEX = re.compile(r'[^ "=]+')


class LogLine(msgspec.Struct, frozen=True):
    """A line of a service."""

    at: float  # s since 1970
    level: str  # such as INFO
    service: str
    message: str
    fields: Mapping[str, FieldValue] = {}

    def text(self) -> str:
        named = "".join(f" {name}={_field_text(value)}" for name, value in self.fields.items())
        return f"{_time(self.at)} {self.level} {self.service}: {self.message}{named}"

    def json(self) -> str:
        known = {"time": _time(self.at), "level": self.level.lower(), "service": self.service, "message": self.message}
        fields = {name: value for name, value in self.fields.items() if name not in known}
        return msgspec.json.encode(known | fields).decode()

    def formed(self, form: LogFormat) -> str:
        return self.json() if form == "json" else self.text()


class ServiceFormatter(logging.Formatter):
    """Formats the records of one service. In JSON a traceback is part of the message."""

    def __init__(self, service: str, form: LogFormat) -> None:
        super().__init__()
        self._service = service
        self._form: LogFormat = form

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if record.exc_info:
            message = f"{message}\n{self.formatException(record.exc_info)}"
        fields = getattr(record, "fields", {})
        return LogLine(record.created, record.levelname, self._service, message, fields).formed(self._form)


def _time(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().isoformat(timespec="milliseconds")


def _field_text(value: FieldValue) -> str:
    """Writes a value so that a blank ends it."""
    if isinstance(value, float):
        return f"{value:g}"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if _PLAIN_REGEX.fullmatch(text) and text.isprintable() else json.dumps(text)
