"""Detects Hugging Face's optional package `kernels`, which has the name of our folder.

Our folder is found first. transformers checks the package's version, and does not use version 0, which
`kernels-0.dist-info` beside our folder declares. Without it, transformers would find the version of an installed
`kernels`, then import ours, and fail.
"""

from importlib.metadata import distributions

OWN_VERSION = "0"


def notice() -> str:
    """Returns a warning if Hugging Face's package is installed, which transformers will not use; else empty."""
    theirs = [found.version for found in distributions(name="kernels") if found.version != OWN_VERSION]
    if not theirs:
        return ""
    return (
        f"Hugging Face's package kernels {theirs[0]} is installed, but Baton's own folder of that name comes before "
        "it: transformers does without"
    )
