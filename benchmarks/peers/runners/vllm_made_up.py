"""Makes up tokens in place of vLLM's model, so that `benchmarks.front` can measure the cost of its front-end.

vLLM imports this in its engine's process; its scheduler, engine core and messages stay. Each running sequence gets a
token a step, and steps begin at multiples of the pause, as in `testing/simulated_worker.py`.
"""

import os
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import torch
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import ModelRunnerOutput

TOKEN = "BATON_FRONT_TOKEN"
"""Names the variable that holds the token which every step gives."""
PAUSE = "BATON_FRONT_PAUSE"
"""Names the variable that holds the s between two steps."""
MEMORY = 1 << 30  # bytes for blocks, which are never allocated
LAYER = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=8, dtype=torch.bfloat16)
ANSWERS: Mapping[str, Any] = {
    "get_kv_cache_spec": {"layer": LAYER},
    "get_supported_kv_cache_layouts": ["NHD"],
    "determine_available_memory": MEMORY,
    "get_supported_tasks": ("generate",),
}
"""Answers of a worker without a model to the engine core's calls at its start."""


class MadeUp(Executor):  # type: ignore[misc]  # its types are in vLLM's environment
    """Answers as an executor of one worker does whose model costs nothing."""

    def _init_executor(self) -> None:
        self._uncomputed: dict[str, int] = {}  # tokens of each prompt that no step has had yet
        self._token, self._pause = int(os.environ[TOKEN]), float(os.environ[PAUSE])

    def collective_rpc(self, method: Any, *arguments: Any, **settings: Any) -> Any:
        return [ANSWERS[method]] if method in ANSWERS else []

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        for new in scheduler_output.scheduled_new_reqs:
            self._uncomputed[new.req_id] = len(new.prompt_token_ids) - new.num_computed_tokens
        names = list(scheduler_output.num_scheduled_tokens)
        tokens = []
        for name in names:
            self._uncomputed[name] -= scheduler_output.num_scheduled_tokens[name]
            tokens.append([self._token] if self._uncomputed[name] <= 0 else [])
        for name in scheduler_output.finished_req_ids:
            self._uncomputed.pop(name, None)
        if names:
            now = time.monotonic()
            time.sleep((now // self._pause + 1) * self._pause - now)
        output = ModelRunnerOutput(names, {name: place for place, name in enumerate(names)}, tokens)
        if not non_block:
            return output
        future: Future[Any] = Future()
        future.set_result(output)
        return future

    def check_health(self) -> None:
        """Is well."""
