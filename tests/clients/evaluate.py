"""Runs lm-eval once, in a process of its own: `python -m tests.clients.evaluate KIND TASKS ARGUMENTS`, each as JSON.

Prints the results as JSON in the last line.
"""

import json
import sys
from pathlib import Path

import lm_eval
from lm_eval.tasks import TaskManager

TASKS = Path(__file__).parent / "tasks"


def main(kind: str, tasks: str, arguments: str) -> None:
    found = lm_eval.simple_evaluate(
        model=kind,
        model_args=json.loads(arguments),
        tasks=json.loads(tasks),
        task_manager=TaskManager(include_path=str(TASKS), include_defaults=False),
        apply_chat_template="chat" in kind,
        bootstrap_iters=0,
        log_samples=False,
        verbosity="ERROR",
    )
    print(json.dumps(found["results"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
