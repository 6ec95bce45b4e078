"""Checks grammars before their requests are queued, in a few processes of their own, and remembers verdicts."""

import asyncio
import hashlib
import logging
import os
import struct
import sys
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from checkpoints.grammars import MAX_GRAMMAR_BYTES
from gateway.errors import invalid, unavailable
from gateway.grammar.frames import LENGTH_BYTES, GrammarCheck, GrammarVerdict
from infra.fair_queueing.turns import NO_TENANT, FairSlots, TenantShare, TooManyWait
from infra.process.tasks import Tasks

CHECKER_PROCESSES = 2
MAX_WAITING_GRAMMARS = 256  # several requests may wait for one grammar
MAX_WAITING_PER_TENANT = 64
CHECK_TIMEOUT_S = 10.0  # includes the start of the process, which may get little of a processor
MAX_REMEMBERED_VERDICTS = 1024
MAX_REMEMBERED_BYTES = 8 << 20
log = logging.getLogger("baton.gateway")


class GrammarChecks:
    """Checks grammars for one model. `directory` has its tokenizer, `vocabulary` is the number of its ids.

    Processes start when they are first needed. A check continues when its client leaves, since a process that is killed
    during a check has to read the tokenizer again.
    """

    def __init__(self, directory: Path, vocabulary: int) -> None:
        self._checkers = [_Checker(directory, vocabulary) for _ in range(CHECKER_PROCESSES)]
        self._idle = list(self._checkers)
        self._slots = FairSlots(CHECKER_PROCESSES, MAX_WAITING_PER_TENANT)
        self._tasks = Tasks("checking grammars")
        self._under_way: dict[bytes, asyncio.Task[GrammarVerdict | None]] = {}
        self._known: OrderedDict[bytes, GrammarVerdict] = OrderedDict()
        self._known_bytes = 0

    async def checked(
        self, grammar: str, param: str, written: Literal["lark", "any"] = "lark", share: TenantShare = NO_TENANT
    ) -> str:
        """Returns a grammar in Lark that workers can compile. Tenants take turns. `written` "any" means Lark or GBNF.

        Raises `APIError`: 400 with the code `invalid_grammar` or `grammar_too_complex` and `param`, or 503 if too many
        grammars wait, or the check has timed out.
        """
        if len(grammar) > MAX_GRAMMAR_BYTES or len(grammar.encode()) > MAX_GRAMMAR_BYTES:
            message = f"{param}: the grammar has more than {MAX_GRAMMAR_BYTES} bytes"
            raise invalid(message, param, "grammar_too_complex")
        key = hashlib.sha256(f"{written} {grammar}".encode()).digest()
        verdict = self._known.get(key) or await self._verdict(key, GrammarCheck(grammar, written), share)
        if verdict is None:
            message = "the grammar could not be checked: too many other grammars are being checked"
            raise unavailable(message, "grammar_checks_busy")
        if verdict.refused:
            raise invalid(f"{param}: {verdict.message}", param, verdict.refused)
        return verdict.grammar or grammar

    async def close(self) -> None:
        await self._tasks.close()
        for checker in self._checkers:
            await checker.close()

    async def _verdict(self, key: bytes, request: GrammarCheck, share: TenantShare) -> GrammarVerdict | None:
        """Returns the verdict on an unknown grammar, or None if it could not be checked."""
        task = self._under_way.get(key)
        if task is None:
            if len(self._under_way) >= MAX_WAITING_GRAMMARS:
                return None
            task = self._under_way[key] = self._tasks.start(self._check(key, request, share))
            task.add_done_callback(lambda _: self._under_way.pop(key, None))
        return await asyncio.shield(task)

    async def _check(self, key: bytes, request: GrammarCheck, share: TenantShare) -> GrammarVerdict | None:
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                await self._slots.take(share, 1)
                checker = self._idle.pop()
                try:
                    verdict = await checker.check(request)
                finally:
                    self._idle.append(checker)
                    self._slots.give_back()
        except (TimeoutError, TooManyWait):
            return None
        if verdict is not None:
            self._known[key] = verdict
            self._known_bytes += len(verdict.grammar)
            while len(self._known) > MAX_REMEMBERED_VERDICTS or self._known_bytes > MAX_REMEMBERED_BYTES:
                self._known_bytes -= len(self._known.popitem(last=False)[1].grammar)
        return verdict


class _Checker:
    """One process. It starts when it is first needed, and again when it has died."""

    def __init__(self, directory: Path, vocabulary: int) -> None:
        self._command = [sys.executable, "-m", "gateway.grammar.checker", str(directory), str(vocabulary)]
        self._process: asyncio.subprocess.Process | None = None

    async def check(self, request: GrammarCheck) -> GrammarVerdict | None:
        """Returns the verdict, or None if the process dies. If the caller is cancelled, the process ends."""
        try:
            process = await self._living()
            assert process.stdin is not None and process.stdout is not None
            body = msgspec.json.encode(request)
            process.stdin.write(struct.pack("<I", len(body)) + body)
            await process.stdin.drain()
            (size,) = struct.unpack("<I", await process.stdout.readexactly(LENGTH_BYTES))
            return msgspec.json.decode(await process.stdout.readexactly(size), type=GrammarVerdict)
        except (OSError, asyncio.IncompleteReadError) as error:
            log.error("the process that checks grammars has died: %s", type(error).__name__)
            await self.close()
            return None
        except asyncio.CancelledError:
            await self.close()  # the next check would read its answer
            raise

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            assert process.stdout is not None
            await (
                process.stdout.read()
            )  # `wait` returns at once if the loop has heard of the end, but not of the pipes'

    async def _living(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
        return self._process
