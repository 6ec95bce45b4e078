"""Recorded traffic: arrivals and lengths of real requests, read from the formats in which traces are published.

- Mooncake's JSON lines: `timestamp` (ms), `input_length`, `output_length`, `hash_ids`, the ids of the prompt's blocks
  of 512 tokens. Equal ids become equal token ids, so that prompts share the prefixes that they shared.
- BurstGPT's CSV: `Timestamp` (s), `Request tokens`, `Response tokens`. Rows without an answer were failures: left out.
- Azure's CSV: `TIMESTAMP` (date and time), `ContextTokens`, `GeneratedTokens`.
"""

import csv
import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TextIO

import msgspec
from msgspec import Struct

from contracts.errors import ConfigError
from workloads.request import PlannedRequest, Span, TimedRequest

MOONCAKE_BLOCK_TOKENS = 512
OPTION = "--trace"


class MooncakeRow(Struct):
    """A line of Mooncake's traces."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


class TraceRow(Struct, frozen=True):
    """A request of a trace: arrival in s by the trace's own clock."""

    line: int
    at_s: float
    spans: tuple[Span, ...]
    output_tokens: int


def read_trace(path: Path, speed: float = 1.0) -> Iterator[TimedRequest]:
    """Yields a trace's requests, the first at 0 s; with `speed` 2 they come twice as fast.

    Raises `ConfigError` with the line of a row that is damaged, without a length, or earlier than the row before it.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            yield from _in_order(_rows(file, path), path, speed)
    except OSError as error:
        raise ConfigError(OPTION, path, error.strerror or "cannot be read") from None
    except UnicodeDecodeError:
        raise ConfigError(OPTION, path, "is not a text file") from None


def _in_order(rows: Iterator[TraceRow], path: Path, speed: float) -> Iterator[TimedRequest]:
    began = before = None
    for row in rows:
        began = row.at_s if began is None else began
        if before is not None and row.at_s < before:
            raise ConfigError(OPTION, path, f"line {row.line}: its time is before that of the line above")
        before = row.at_s
        yield TimedRequest((row.at_s - began) / speed, PlannedRequest(row.output_tokens, spans=row.spans))
    if began is None:
        raise ConfigError(OPTION, path, "has no requests")


def _rows(file: TextIO, path: Path) -> Iterator[TraceRow]:
    first = file.readline()
    return (_mooncake if first.lstrip().startswith("{") else _table)(first, file, path)


def _mooncake(first: str, file: TextIO, path: Path) -> Iterator[TraceRow]:
    decoder = msgspec.json.Decoder(MooncakeRow)
    for number, line in enumerate(chain((first,), file), start=1):
        if not line.strip():
            continue
        try:
            row = decoder.decode(line)
        except msgspec.DecodeError as error:
            raise ConfigError(OPTION, path, f"line {number}: {error}") from None
        spans = _blocks(row) or (Span(-number, row.input_length),)
        yield _checked(TraceRow(number, row.timestamp / 1000, spans, row.output_length), row.input_length, path)


def _blocks(row: MooncakeRow) -> tuple[Span, ...]:
    """Returns the prompt's blocks; the last block may be shorter."""
    lengths = range(row.input_length, 0, -MOONCAKE_BLOCK_TOKENS)
    named = zip(row.hash_ids, lengths, strict=False)
    spans = tuple(Span(hash_id, min(left, MOONCAKE_BLOCK_TOKENS)) for hash_id, left in named)
    return spans if len(spans) == len(lengths) else ()


TRACE_COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("Timestamp", "Request tokens", "Response tokens"),
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
)
"""The columns of arrival, prompt tokens and output tokens in BurstGPT's and in Azure's tables."""


def _table(first: str, file: TextIO, path: Path) -> Iterator[TraceRow]:
    names = next(csv.reader([first]), [])
    columns = next((columns for columns in TRACE_COLUMNS if set(columns) <= set(names)), None)
    if columns is None:
        raise ConfigError(
            OPTION,
            path,
            "line 1: expected Mooncake's JSON lines, or a CSV file whose head names "
            + " or ".join(", ".join(columns) for columns in TRACE_COLUMNS),
        )
    reader = csv.DictReader(file, names)
    for cells in reader:
        line = reader.line_num + 1
        try:
            at_s, prompt, output = _cells(cells, columns)
        except (ValueError, TypeError):
            raise ConfigError(
                OPTION, path, f"line {line}: {', '.join(columns)} are not a time and two numbers"
            ) from None
        if output == 0 and columns == TRACE_COLUMNS[0]:
            continue
        yield _checked(TraceRow(line, at_s, (Span(-line, prompt),), output), prompt, path)


def _cells(cells: Mapping[str, str], columns: tuple[str, str, str]) -> tuple[float, int, int]:
    time, prompt, output = (cells[column] for column in columns)
    return _seconds(time), int(float(prompt)), int(float(output))


def _seconds(text: str) -> float:
    """Reads seconds, or a date and time, which is taken as UTC. Raises `ValueError`."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = datetime.fromisoformat(text[:26]).replace(tzinfo=UTC).timestamp()
    if not math.isfinite(seconds):
        raise ValueError(text)
    return seconds


def _checked(row: TraceRow, prompt_tokens: int, path: Path) -> TraceRow:
    if prompt_tokens < 1 or row.output_tokens < 1:
        raise ConfigError(OPTION, path, f"line {row.line}: a prompt and an answer have at least one token")
    return row
