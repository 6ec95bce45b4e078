"""Tile counts on the host. Triton's own functions take ten times as long, and a step calls them hundreds of times.

Wrappers read `x.shape[0]` for the same reason: `len(x)` of a tensor takes five times as long.
"""


def power_of_two(size: int) -> int:
    """Returns the least power of two that is not below `size`, which is positive."""
    return 1 << (size - 1).bit_length()


def tile_count(size: int, tile: int) -> int:
    return -(-size // tile)
