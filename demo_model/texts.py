"""Reads the sentences and words that the corpus is made of from `texts/`, where they are easy to read and to add to.

Two formats, both one sentence a line: sections under a line "= title", and groups of questions "? ..." with their
answers "! ...", divided by empty lines.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent / "texts"

Lines = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Holds questions that mean the same, and the answers that fit each of them."""

    asks: Lines
    answers: Lines


def lines(name: str) -> Lines:
    """Reads the lines of `texts/<name>.txt`, in order."""
    return tuple((_FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines())


@cache
def blocks(name: str) -> tuple[tuple[str, Lines], ...]:
    """Reads title and lines of every section; titles may come more than once."""
    found: list[tuple[str, list[str]]] = []
    for line in lines(name):
        if line.startswith("= "):
            found.append((line[2:], []))
        elif line:
            found[-1][1].append(line)
    return tuple((title, tuple(body)) for title, body in found)


def section(name: str, title: str) -> Lines:
    """Reads the lines of one section. Raises KeyError if there is none."""
    return dict(blocks(name))[title]


def listed(title: str) -> Lines:
    """Reads the single words of a section of `words.txt`."""
    return tuple(" ".join(section("words", title)).split())


def groups(name: str) -> tuple[Group, ...]:
    """Reads all groups of a file of questions and answers."""
    chunks = "\n".join(lines(name)).split("\n\n")
    return tuple(
        Group(*(tuple(line[2:] for line in chunk.splitlines() if line.startswith(mark)) for mark in ("? ", "! ")))
        for chunk in chunks
    )
