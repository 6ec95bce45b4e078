"""Runs tests, tables, tuning and engines that need a GPU, on a machine that is at hand for minutes.

    python -m benchmarks.gpu --out DIR [--part 1|2|3] [--only STAGE …] [--again STAGE …] [--minutes 9.5] [--list]

`python benchmarks/gpu.py` is the same. Nothing is installed: `docs/operations.md` lists the packages. The stages
(`benchmarks/gpu_hour/stages.py`) run one after the other, each in a process of its own and within its time limit. A
stage that fails, crashes or hangs ends alone, and no stage begins that may outlast the call. `results.json` keeps the
outcomes, so the next call with the same DIR continues: first with stages that have not run, then with stages that have
not passed. `results.md` has the tables, `log.txt` all output, `tuned.json` the measured configs. A call prints fewer
than 12,000 characters. The status is 1 if a stage has not passed, or has not run.
"""

import argparse
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
if not __package__:  # as a script, which finds the files beside it and not the packages
    sys.path[0] = str(ROOT)

from benchmarks.gpu_hour.results import MAX_LINE_CHARS, closing, load, save  # noqa: E402
from benchmarks.gpu_hour.running import Outcome, run  # noqa: E402
from benchmarks.gpu_hour.stages import PART_ONE, PART_THREE, PART_TWO, STAGES, Stage  # noqa: E402
from kernels.tuned_tables import own_file  # noqa: E402

USUAL_MINUTES = 9.5
PARTS = {"1": PART_ONE, "2": PART_TWO, "3": PART_THREE}


def to_run(stages: Sequence[Stage], outcomes: Mapping[str, Outcome], again: Sequence[str] = ()) -> list[Stage]:
    repeated = [stage for stage in stages if stage.name in again]
    others = [stage for stage in stages if stage.name not in again]
    fresh = [stage for stage in others if stage.name not in outcomes]
    return [*repeated, *fresh, *(each for each in others if each.name in outcomes and not outcomes[each.name].passed)]


def main(stages: Sequence[Stage] = STAGES) -> int:
    given = options(stages)
    wanted = [stage for stage in stages if stage.name in (given.only or [stage.name])]
    if given.part:
        wanted = [stage for stage in wanted if stage in PARTS[given.part]]
    if given.list:
        print("\n".join(f"{stage.name}: {stage.limit_s:.0f} s, needs {', '.join(stage.needs)}" for stage in wanted))
        return 0
    end = time.monotonic() + 60 * given.minutes
    signal.signal(signal.SIGTERM, _interrupt)
    given.out.mkdir(parents=True, exist_ok=True)
    outcomes = load(given.out)
    _bring_back_tuned(given.out, outcomes)
    begun: list[str] = []
    for stage in to_run(wanted, outcomes, given.again or given.only or ()):
        left = end - time.monotonic()
        if left < stage.limit_s and (begun or left <= 0):
            print(f"{stage.name}: for the next call, it may take {stage.limit_s:.0f} s of {max(0.0, left):.0f}")
            continue
        begun.append(stage.name)
        outcomes[stage.name] = outcome = run(stage, min(stage.limit_s, left), given.out)
        save(given.out, outcomes)
        if own_file().exists():
            shutil.copy(own_file(), given.out / "tuned.json")
        last = outcome.last_lines[-1] if outcome.last_lines else ""
        print(f"{stage.name}: {outcome.status} after {outcome.seconds:.0f} s: {last}"[:MAX_LINE_CHARS], flush=True)
    print(closing(begun, outcomes))
    undone = [stage.name for stage in wanted if stage.name not in outcomes or not outcomes[stage.name].passed]
    print(f"{len(wanted) - len(undone)} of {len(wanted)} stages have passed; {given.out / 'results.md'} has the tables")
    return int(bool(undone))


def _bring_back_tuned(out: Path, outcomes: Mapping[str, Outcome]) -> None:
    kept = out / "tuned.json"
    if kept.exists() and not own_file().exists() and "tune" in outcomes:
        own_file().parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(kept, own_file())


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def options(stages: Sequence[Stage]) -> argparse.Namespace:
    names = [stage.name for stage in stages]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("gpu-hour"), metavar="DIR", help="results, new and earlier")
    parser.add_argument("--part", choices=list(PARTS), help="only the stages of this part")
    parser.add_argument("--only", nargs="+", choices=names, metavar="STAGE", help="only these, also if they passed")
    parser.add_argument("--again", nargs="+", choices=names, metavar="STAGE", help="these first, also if they passed")
    parser.add_argument("--minutes", type=float, default=USUAL_MINUTES, help="for all of it")
    parser.add_argument("--list", action="store_true", help="print the stages, with their times and what they need")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
