"""Runs several gateway processes on one port, for containers without another supervisor.

The system spreads new connections over them. A gateway that ends is started again; a signal ends all of them.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

from contracts.ids import new_epoch
from infra.config.gateway import GatewayConfig
from infra.network.listening import listen
from infra.process.dying import die_with
from infra.process.tasks import child

BAD_INPUT_STATUS = 2  # exit status of a gateway with an invalid configuration
RESTART_PAUSES_S = (1.0, 2.0, 5.0, 15.0)  # s before a gateway is restarted, by the number of restarts
ENDING_ALLOWANCE_S = 15.0  # s to end a gateway after --drain-seconds
log = logging.getLogger("baton.gateway")


def run_process_group(config: GatewayConfig, arguments: Sequence[str]) -> int:
    """Returns exit status 0 after a signal, 2 for invalid arguments. Raises `ConfigError`."""
    with listen(config.host, config.port, shared=True) as place:  # reserves the port, without accepting connections
        port: int = place.getsockname()[1]
        return asyncio.run(GatewayGroup(config, arguments, port).run())


class GatewayGroup:
    """The gateway processes of one port."""

    def __init__(self, config: GatewayConfig, arguments: Sequence[str], port: int) -> None:
        self._count = config.gateways
        self._status = config.status_file
        self._stop_timeout_s = config.drain_seconds + ENDING_ALLOWANCE_S
        shared = ["--gateways", "1", "--port", str(port), "--share-port", new_epoch()]
        safe = ["-P"] if sys.flags.safe_path else []  # the same module search path as in this process
        self._command = [sys.executable, *safe, "-m", "gateway", *arguments, *shared]
        self._ending = asyncio.Event()
        self._bad = False

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._ending.set)
        keeping = [child(self._keep_running(number)) for number in range(self._count)]
        await asyncio.gather(*keeping)
        return BAD_INPUT_STATUS if self._bad else 0

    async def _keep_running(self, number: int) -> None:
        """Restarts a gateway whenever it ends, until all are to end."""
        for tried in range(1 << 30):
            status = await self._run_once(number)
            if status == BAD_INPUT_STATUS:
                self._bad = True
                self._ending.set()
            if self._ending.is_set():
                return
            pause = RESTART_PAUSES_S[min(tried, len(RESTART_PAUSES_S) - 1)]
            log.error("gateway %d ended with status %d; it is started again in %g s", number, status, pause)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._ending.wait()
                return

    async def _run_once(self, number: int) -> int:
        """Runs a gateway until it ends or all are to end. Returns its exit status."""
        place = ["--status-file", f"{self._status}.{number}"] if self._status else []
        process = await asyncio.create_subprocess_exec(
            *self._command, *place, start_new_session=True, preexec_fn=die_with(os.getpid())
        )
        ended, ending = child(process.wait()), child(self._ending.wait())
        await asyncio.wait({ended, ending}, return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        if not ended.done():
            process.terminate()
            await asyncio.wait({ended}, timeout=self._stop_timeout_s)
        if not ended.done():
            process.kill()
        return await ended
