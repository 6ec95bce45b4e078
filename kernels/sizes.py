"""Counts tiles on the host. Triton's own functions take ten times as long there, and a step calls them by hundreds."""


def power_of_two(size: int) -> int:
    """Returns the least power of two that is not below `size`, which is positive."""
    return 1 << (size - 1).bit_length()


def tile_count(size: int, tile: int) -> int:
    """Returns how many tiles cover `size`."""
    return -(-size // tile)
