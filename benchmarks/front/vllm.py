"""Starts vLLM's API server as a front: its HTTP, tokenizer, detokenizer and events, over an engine without a model.

Its scheduler and engine core run in a process of their own, as our workers do, and are not counted.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.front.system import HOST, MODEL_NAME, TOKEN, Front, Shape, wait
from benchmarks.peers.servers import VLLM
from benchmarks.peers.setup import PeerError, python_of
from benchmarks.processes.children import child, last_line
from infra.network.listening import http_url
from launcher.checking.preflight import check_port
from launcher.host.process import answers
from launcher.options import DEMO_MODEL

EXECUTOR = "benchmarks.peers.runners.vllm_made_up.MadeUp"
START_TIMEOUT_S = 600.0
MAX_STREAMS = 1024  # sequences in a step
APIS = ("chat", "completions")
"""APIs of which vLLM takes the body that ours is asked."""


@contextmanager
def vllm_front(peers: Path, shape: Shape) -> Iterator[Front]:
    """Starts one API server of the vLLM that is installed in `peers`, and ends it on exit. Raises `BatonError`.

    The times at which its tokens were made are not known.
    """
    with tempfile.TemporaryDirectory(prefix="baton-front-") as name:
        directory = Path(name)
        port = check_port("--port", HOST, 0)
        command = [str(python_of(peers, VLLM)), "-m", "vllm.entrypoints.openai.api_server", "--model", str(DEMO_MODEL)]
        command += ["--host", HOST, "--port", str(port), "--served-model-name", MODEL_NAME, "--dtype", "bfloat16"]
        command += ["--max-num-seqs", str(MAX_STREAMS), "--distributed-executor-backend", EXECUTOR]
        command += ["--disable-uvicorn-access-log"]
        # Names from the module of `EXECUTOR`, which needs vLLM's environment.
        told = {"BATON_FRONT_TOKEN": str(TOKEN), "BATON_FRONT_PAUSE": str(shape.pause)}
        settings = {**VLLM.settings(peers / VLLM.name, 1), **told}
        log = directory / "gateway-0.log"
        with child(command, log, settings=settings) as process:
            url = f"{http_url(HOST, port)}/health"
            wait(lambda: process.poll() is not None or answers(url), "vLLM", directory, START_TIMEOUT_S)
            if process.poll() is not None:
                raise PeerError(f"vLLM has ended: {last_line(log)}")
            yield Front(port, "", [process], directory, dict)
