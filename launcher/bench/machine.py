"""Names the machine that measures, for the head of a report."""

import os
import platform


def machine() -> str:
    return f"{processor()}, {os.cpu_count()} CPUs, {platform.system()}, Python {platform.python_version()}"


def processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
