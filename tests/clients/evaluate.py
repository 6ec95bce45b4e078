"""Runs lm-eval in a process of its own: `python -m tests.clients.evaluate RUNS`, a list of KIND, TASKS and ARGUMENTS.

`RUNS` is JSON. Prints the results of each as JSON in the last line.
"""

import json
import sys
from pathlib import Path
from typing import Any

import lm_eval
from lm_eval.tasks import TaskManager

TASKS = Path(__file__).parent / "tasks"


def evaluated(kind: str, tasks: list[str], arguments: dict[str, Any]) -> Any:
    found = lm_eval.simple_evaluate(
        model=kind,
        model_args=arguments,
        tasks=tasks,
        task_manager=TaskManager(include_path=str(TASKS), include_defaults=False),
        apply_chat_template="chat" in kind,
        bootstrap_iters=0,
        log_samples=False,
        verbosity="ERROR",
    )
    return found["results"]


if __name__ == "__main__":
    print(json.dumps([evaluated(*each) for each in json.loads(sys.argv[1])]))
