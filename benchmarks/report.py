"""Markdown tables, the name of the machine, and ways that are measured in turns."""

import platform
from collections.abc import Callable, Iterable, Mapping
from statistics import median
from typing import TypeVar

from launcher.bench.machine import processor

Measured = TypeVar("Measured")


def head(*columns: str) -> str:
    return f"{row(*columns)}\n|{' --- |' * len(columns)}"


def row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def machine(threads: int) -> str:
    return f"{processor()}, {threads} threads; Python {platform.python_version()}"


def in_turns(
    ways: Mapping[str, Callable[[], Measured]],
    rounds: int,
    warm_up: int = 1,
    show: Callable[[int, int], object] = lambda number, of: None,
) -> list[dict[str, Measured]]:
    """Runs every way once a round, so that a busy machine slows down all of them. Rounds that warm up are left out.

    Each round begins with another way. `show` gets the number of the round and the number of all rounds.
    """
    found, names = [], list(ways)
    for number in range(warm_up + rounds):
        show(number, warm_up + rounds)
        turn = number % len(names)
        ran = {name: ways[name]() for name in names[turn:] + names[:turn]}
        found.append({name: ran[name] for name in names})
    return found[warm_up:]


def ratio(rounds: Iterable[Mapping[str, float]], name: str, other: str) -> float:
    return median(each[name] / each[other] for each in rounds)
