"""Runs a module on one core: `python -m benchmarks.processes.pinned CORE MODULE [WORD …]`."""

import os
import runpy
import sys


def main() -> None:
    core, module, *words = sys.argv[1:]
    os.sched_setaffinity(0, {int(core)})
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
