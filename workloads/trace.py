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
from workloads.lengths import MAX_LENGTH_TOKENS
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

    Raises `ConfigError` with the line of a row that is damaged, without a length, earlier than the row before it, or
    with ids of more or fewer blocks than its prompt has.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            yield from _in_order(_rows(file, path), path, speed)
    except OSError as error:
        raise ConfigError(OPTION, path, error.strerror or "cannot be read") from None
    except (UnicodeDecodeError, csv.Error):
        raise ConfigError(OPTION, path, "is not a text file of such lines") from None


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
        _check_lengths(number, row.input_length, row.output_length, path)
        yield TraceRow(number, row.timestamp / 1000, _blocks(row, number, path), row.output_length)


def _blocks(row: MooncakeRow, line: int, path: Path) -> tuple[Span, ...]:
    """Returns the prompt's blocks, of which the last may be shorter; without ids a block that no other prompt has."""
    if not row.hash_ids:
        return (Span(-line, row.input_length),)
    lengths = range(row.input_length, 0, -MOONCAKE_BLOCK_TOKENS)
    if len(row.hash_ids) != len(lengths):
        named = f"{row.input_length} tokens are {len(lengths)} blocks of {MOONCAKE_BLOCK_TOKENS}"
        raise ConfigError(OPTION, path, f"line {line}: {named}, and hash_ids names {len(row.hash_ids)}")
    named_blocks = zip(row.hash_ids, lengths, strict=True)
    return tuple(Span(hash_id, min(left, MOONCAKE_BLOCK_TOKENS)) for hash_id, left in named_blocks)


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
        except (ValueError, TypeError, OverflowError):
            raise ConfigError(
                OPTION, path, f"line {line}: {', '.join(columns)} are not a time and two numbers"
            ) from None
        if output == 0 and columns == TRACE_COLUMNS[0]:
            continue
        _check_lengths(line, prompt, output, path)
        yield TraceRow(line, at_s, (Span(-line, prompt),), output)


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


def _check_lengths(line: int, prompt_tokens: int, output_tokens: int, path: Path) -> None:
    if not (1 <= prompt_tokens <= MAX_LENGTH_TOKENS and 1 <= output_tokens <= MAX_LENGTH_TOKENS):
        raise ConfigError(
            OPTION, path, f"line {line}: a prompt and an answer have from 1 to {MAX_LENGTH_TOKENS} tokens"
        )
