"""Keeps the outcomes of stages: as JSON to continue from, as a page of tables, and as a text of bounded length."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate
from pathlib import Path

from benchmarks.gpu_hour.running import Outcome

MAX_CLOSING_CHARS = 8_200
"""Characters of a call's closing text: with a line for each stage before it, all that it prints stays below 12,000."""
MAX_FAILED_LINES, MAX_LINE_CHARS = 15, 120


def load(out: Path) -> dict[str, Outcome]:
    place = out / "results.json"
    return {name: Outcome(**kept) for name, kept in json.loads(place.read_text()).items()} if place.exists() else {}


def save(out: Path, outcomes: Mapping[str, Outcome]) -> None:
    found = json.dumps({name: asdict(each) for name, each in outcomes.items()}, indent=1)
    _replace(out / "results.json", found + "\n")
    page = ["# On the GPU", ""]
    for name, outcome in outcomes.items():
        page += [f"## {name}: {outcome.status}, {outcome.seconds:.0f} s", ""]
        page += [*_apart(outcome.tables), ""] if outcome.tables else []
        page += ["```", *outcome.last_lines, "```", ""] if not outcome.tables or not outcome.passed else []
        if isinstance(outcome.result, dict) and "versions" in outcome.result:
            page += [f"{outcome.result['versions']}; limits {outcome.result['limits']}", ""]
    _replace(out / "results.md", "\n".join(page))


def _replace(place: Path, text: str) -> None:
    half = place.with_suffix(".part")
    half.write_text(text)
    half.replace(place)


def _apart(lines: Sequence[str]) -> list[str]:
    separated: list[str] = []
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        separated += ["", line] if following.startswith("| ---") and separated else [line]
    return separated


def closing(names: Iterable[str], outcomes: Mapping[str, Outcome], most: int = MAX_CLOSING_CHARS) -> str:
    """Writes the results of a call's stages in at most `most` characters: failures first, then tables.

    Every stage has an equal share of the characters, and leaves the rest of it to later stages.
    """
    ran = [(name, outcomes[name]) for name in names if name in outcomes]
    wrong = [(name, each) for name, each in ran if not each.passed and each.last_lines]
    tables = [(name, each) for name, each in ran if each.tables]
    text, left = "", len(wrong) + len(tables)
    for name, each in wrong:
        lines = [line[:MAX_LINE_CHARS] for line in each.last_lines[-MAX_FAILED_LINES:]]
        shown = _fitting(lines[::-1], (most - len(text)) // left - len(name) - MAX_LINE_CHARS)[::-1]  # the end says why
        text += "\n".join([f"\n{name}: {each.status}", *shown, ""])
        left -= 1
    for name, each in tables:
        lines = _apart(each.tables)
        shown = _fitting(lines, (most - len(text)) // left - len(name) - MAX_LINE_CHARS)
        if len(shown) < len(lines):
            shown = [*shown, f"… {len(lines) - len(shown)} lines more are in results.md"]
        text += "\n".join([f"\n{name}", *shown, ""])
        left -= 1
    return text


def _fitting(lines: Sequence[str], room: int) -> list[str]:
    ends = accumulate(len(line) + 1 for line in lines)
    return [line for line, end in zip(lines, ends, strict=True) if end <= room]
