"""Notices Hugging Face's optional package `kernels`, which transformers looks for, beside our folder of that name.

Ours is found first. What transformers asks for is the package's version, so `kernels-0.dist-info` beside our folder
says that this is version 0, which it does not use. Without it, transformers would find the version of theirs, where
that is installed, then import from ours what only theirs has, and fail.
"""

from importlib.metadata import distributions

OWN_VERSION = "0"


def notice() -> str:
    """Returns one sentence if theirs is installed as well, for whoever expects it to be used; empty if not."""
    theirs = [found.version for found in distributions(name="kernels") if found.version != OWN_VERSION]
    if not theirs:
        return ""
    return (
        f"Hugging Face's package kernels {theirs[0]} is installed, but Baton's own folder of that name comes before "
        "it: transformers does without"
    )
