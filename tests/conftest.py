"""What holds for every test: the GPU's tests run where there is one, and are deselected, visibly, elsewhere."""

import gc
import importlib
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# Test models are far too small for a second thread, and idle OpenMP threads spin in the way of the services under test.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GOMP_SPINCOUNT", "0")

import pytest
import torch
from hypothesis import HealthCheck, settings

from launcher.devices.gpus import visible_gpus
from tests.order import ROOT, may_match, mixed

# Examples take longer on a busy machine, which is no failure.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

gc.disable()  # what is imported and collected stays: looking for garbage in it is lost time

# Triton decides when a kernel is decorated: without a GPU all of them run in its interpreter, on the CPU's tensors.
if not visible_gpus():
    os.environ.setdefault("TRITON_INTERPRET", "1")
    from tests.interpreter import keep_lookups

    keep_lookups()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out the files of which `-k ROOM` cannot select a test: to import all of them takes long."""
    return None if may_match(config.option.keyword.strip(), collection_path) else True


def pytest_collection(session: pytest.Session) -> None:
    """Of several processes each begins with other files of tests, and finds the rest compiled by the others.

    Without bytecode, as in a fresh checkout, compiling is a third of what importing all tests takes.
    """
    told = getattr(session.config, "workerinput", None)
    if told is None:
        return
    word, folders = session.config.option.keyword.strip(), [Path(argument) for argument in session.config.args]
    files = sorted(file for folder in folders for file in folder.rglob("test_*.py") if may_match(word, file.absolute()))
    first = len(files) * int(told["workerid"].removeprefix("gw")) // told["workercount"]
    for file in files[first:] + files[:first]:
        with suppress(Exception, pytest.skip.Exception):  # collecting it says so
            importlib.import_module(".".join(file.absolute().relative_to(ROOT.parent).with_suffix("").parts))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects the tests that this machine cannot run, with a GPU or without; pytest's closing line counts them."""
    places = {path: place for place, path in enumerate(mixed(item.path for item in items))}
    items.sort(key=lambda item: places[item.path])
    wrong = "interpreted" if visible_gpus() else "gpu"
    marked = [item for item in items if item.get_closest_marker(wrong) is not None]
    if marked:
        config.hook.pytest_deselected(items=marked)
        items[:] = [item for item in items if item not in marked]


def pytest_collection_finish() -> None:
    """Garbage collections begin with the tests, and look at what they make."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Random tensors of a test, and of fixtures that it makes, are the same whatever ran before it in its process."""
    torch.default_generator.manual_seed(0)  # `torch.manual_seed` keeps a stack for each kind of device that is not here
    if visible_gpus():
        torch.cuda.manual_seed_all(0)


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Where several processes run the tests (pytest-xdist), each notes how many it leaves out."""
    output = getattr(items[0].config, "workeroutput", None) if items else None
    if output is not None:
        output["deselected"] = output.get("deselected", 0) + len(items)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Takes the count over into pytest's closing line, once: all leave out the same."""
    reporter = node.config.pluginmanager.get_plugin("terminalreporter")
    count = getattr(node, "workeroutput", {}).get("deselected", 0)
    reporter.stats["deselected"] = [SimpleNamespace()] * count  # other plugins look into everything that is counted
