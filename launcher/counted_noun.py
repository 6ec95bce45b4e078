"""Writes a number with its noun, in sentences for people."""


def counted_noun(number: float, noun: str) -> str:
    """Returns `1 GPU`, `2 GPUs` or `0.5 GPUs`."""
    return f"{number:g} {noun}{'' if number == 1 else 's'}"
