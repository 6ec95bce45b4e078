"""How a benchmark that starts other programs runs and ends."""

import sys
from collections.abc import Callable

from benchmarks.children import end_on_termination
from core.errors import BatonError, ConfigError, ModelError
from launcher.stages import Stages


def exit_status(work: Callable[[Stages], None]) -> int:
    """Runs `work`. 2 for bad input, 1 where another program or an installation fails, 130 after Ctrl-C."""
    stages = Stages(sys.stderr)
    end_on_termination()
    try:
        work(stages)
    except KeyboardInterrupt:
        return 130
    except BatonError as error:
        stages.settle()
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError | ModelError) else 1
    return 0
