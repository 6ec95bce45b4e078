"""Formats metrics: a number, a space, a unit."""


def as_ms(ms: float) -> str:
    """Formats `4.3 ms`, `42 ms`, `1.24 s`."""
    if ms >= 1000:
        return f"{ms / 1000:.2f} s" if ms < 100_000 else f"{ms / 1000:.0f} s"
    return f"{ms:.1f} ms" if ms < 10 else f"{ms:.0f} ms"


def as_bytes(size: float) -> str:
    """Formats `0 KiB`, `96 KiB`, `3.2 MiB`, `1.1 GiB`."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    kib = size / 1024
    return f"{kib:.1f} KiB" if 0 < kib < 10 else f"{kib:.0f} KiB"


def as_rate(bytes_per_second: float) -> str:
    """Formats `1.2 GB/s`, `98 MB/s`, `0.4 MB/s`, in decimal units."""
    if bytes_per_second >= 1e9:
        return f"{bytes_per_second / 1e9:.1f} GB/s"
    return f"{bytes_per_second / 1e6:.{0 if bytes_per_second >= 1e7 else 1}f} MB/s"


def as_count(number: float) -> str:
    """Formats `7`, `812`, `1.2k`, `3.4M`."""
    for suffix, scale in (("M", 1e6), ("k", 1e3)):
        if number >= scale:
            return f"{number / scale:.1f}{suffix}"
    return f"{number:.0f}"


def as_share(share: float) -> str:
    """Formats `97%`; only 1 is `100%`, and only 0 is `0%`."""
    if 0.99 < share < 1:
        return ">99%"
    return "<1%" if 0 < share < 0.01 else f"{100 * share:.0f}%"
