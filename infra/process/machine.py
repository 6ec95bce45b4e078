"""Names the machine that this process runs on: the same name in all of its containers, until it is booted again."""

import hashlib
from pathlib import Path

BOOT_ID_PATH = Path("/proc/sys/kernel/random/boot_id")


def machine(path: Path = BOOT_ID_PATH) -> str:
    """Returns 16 digits of a digest of the kernel's boot id; empty where the kernel has none."""
    try:
        return hashlib.sha256(path.read_bytes().strip()).hexdigest()[:16]
    except OSError:
        return ""
