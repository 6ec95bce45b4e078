"""Names the machine, equally in all of its containers, until it is booted again."""

import hashlib
from pathlib import Path

BOOT_ID_PATH = Path("/proc/sys/kernel/random/boot_id")


def machine(path: Path = BOOT_ID_PATH) -> str:
    """Returns 16 hex digits of a digest of the kernel's boot id; empty without one."""
    try:
        return hashlib.sha256(path.read_bytes().strip()).hexdigest()[:16]
    except OSError:
        return ""
