"""Draws two pictures in one SVG: ms of a decode step over the batch, tokens per second over a prompt's length."""

from collections.abc import Sequence

from benchmarks.engine.plot import GAP, LIMIT, OURS, PROMPTS, WIDTH, Axis, dots, frame, label, line, page, vertical
from benchmarks.engine.shaped import MOST_OVER_FLOOR, Decoded, Read

Place = tuple[float, float]


def draw(decoded: Sequence[Decoded], read: Sequence[Read], header: str) -> str:
    """Writes the SVG; what nothing was measured of is left out."""
    steps = _steps(decoded) if decoded else []
    prompts = _prompts(read) if read else []
    return page([*steps, *prompts], header)


def _steps(decoded: Sequence[Decoded]) -> list[str]:
    measured: list[Place] = [(each.batch, 1e3 * each.seconds) for each in decoded]
    floor: list[Place] = [(each.batch, 1e3 * each.floor) for each in decoded]
    wanted = [(batch, MOST_OVER_FLOOR * least) for batch, least in floor]
    x, y = _horizontal(measured, GAP), vertical([value for _, value in (*measured, *floor)])
    return [
        *frame(x, y, f"ms of a decode step, context {_contexts(decoded)}", "sequences at once", 2),
        line(x, y, floor, LIMIT),
        line(x, y, wanted, LIMIT),
        line(x, y, measured, OURS),
        *dots(x, y, measured, OURS),
        label(x, y, floor[-1], f"floor, and {MOST_OVER_FLOOR:g} x floor", LIMIT),
        label(x, y, measured[-1], "measured", OURS),
    ]


def _contexts(decoded: Sequence[Decoded]) -> str:
    """Names the contexts, and the batches that have another than the first."""
    first = decoded[0].context
    others = [f"{each.context} at {each.batch}" for each in decoded if each.context != first]
    return ", ".join([str(first), *others])


def _prompts(read: Sequence[Read]) -> list[str]:
    measured: list[Place] = [(each.tokens, each.tokens / each.seconds) for each in read]
    x, y = _horizontal(measured, 2 * GAP + WIDTH), vertical([value for _, value in measured])
    return [
        *frame(x, y, "prompt tokens/s over the prompt's length", "tokens", 2),
        line(x, y, measured, PROMPTS),
        *dots(x, y, measured, PROMPTS),
    ]


def _horizontal(places: Sequence[Place], begin: float) -> Axis:
    return Axis(places[0][0], 1.1 * places[-1][0], begin, WIDTH)
