"""Memory sizes as people write them."""

import re

UNIT_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_bytes(text: str) -> int:
    """Reads `512MiB`, `2G`, `1048576` … as bytes. Raises ValueError on anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError("expected a size such as 512MiB or 2GiB")
    return int(float(match[1]) * UNIT_BYTES[match[2].upper()])


def format_bytes(count: float) -> str:
    for unit in ("T", "G", "M", "K"):
        if count >= UNIT_BYTES[unit]:
            return f"{count / UNIT_BYTES[unit]:.1f}{unit}iB"
    return f"{count:.0f}B"
