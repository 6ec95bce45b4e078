"""Formats numbers as quantities of Kubernetes."""


def cores(cpus: float) -> str:
    """Formats a number of cores: `4`, or `500m` for a fraction."""
    return f"{cpus:.0f}" if cpus == int(cpus) else f"{1000 * cpus:.0f}m"


def size(bytes_: int) -> str:
    """Formats bytes in the largest unit that divides them: `32Gi`."""
    for unit, shift in (("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)):
        if bytes_ and bytes_ % (1 << shift) == 0:
            return f"{bytes_ >> shift}{unit}"
    return str(bytes_)


def decimal(number: float) -> str:
    """Formats a number with at most three decimals: `1600m` is 1.6."""
    return f"{1000 * number:.0f}m"
