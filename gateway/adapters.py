"""Loads and unloads adapters at run time: changes the list in Redis, and waits until the workers have applied it.

The list is the only source of truth. So any gateway may change it, and a starting worker loads the listed adapters
before it is ready.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

from contracts.adapters import AdapterSource, check_name, directory_inside
from contracts.errors import AdapterError, StoreUnavailable
from gateway.errors import APIError, invalid, no_model, unavailable
from gateway.workers.connection import WorkerConnection
from gateway.workers.directory import WorkerDirectory
from infra.config.gateway import GatewayConfig
from infra.network.sealing import Signer
from infra.redis.adapter_list import ADAPTER_LIST_PURPOSE, MAX_ADAPTERS, change
from infra.redis.clients import Store
from infra.redis.store import ServerClock

LOAD_TIMEOUT_S = 120.0  # s in which all workers must load an adapter or report an error
UNLOAD_TIMEOUT_S = 15.0  # s in which all workers must apply an unloading
CHECK_INTERVAL_S = 0.05  # s between checks of the workers' records
STORE_AWAY = "the list of adapters is out of reach"
Sources = tuple[AdapterSource, ...]


class AdapterLoading:
    """Loads and unloads adapters for clients. `names`: the clients' names of the model."""

    def __init__(
        self,
        config: GatewayConfig,
        names: Sequence[str],
        store: Store,
        secret: bytes,
        clock: ServerClock,
        workers: WorkerDirectory[WorkerConnection],
    ) -> None:
        self._config = config
        self._names = names
        self._store = store
        self._signer = Signer(secret, ADAPTER_LIST_PURPOSE)
        self._clock = clock
        self._workers = workers

    async def load(self, name: str, path: str) -> None:
        """Has every worker load an adapter; returns when requests may name it. Raises `APIError`.

        If one worker fails, all unload it, and the error has that worker's sentence.
        """
        self._refuse_unless_allowed()
        try:
            check_name(name)
            directory_inside(self._config.lora_root, path)
        except AdapterError as error:
            raise invalid(str(error), "lora_path" if "path" in str(error) else "lora_name") from None
        source = AdapterSource(name, path)

        def with_it(sources: Sources) -> Sources:
            if name in self._names or name in self._workers.adapters() or any(one.name == name for one in sources):
                whose = "the model" if name in self._names else "an adapter that is loaded"
                raise invalid(f"the name {name!r} is taken by {whose}", "lora_name", "adapter_exists")
            if len(sources) >= MAX_ADAPTERS:
                raise invalid(f"{MAX_ADAPTERS} adapters are loaded at most", "lora_name", "too_many_adapters")
            return (*sources, source)

        number = await self._change(with_it)
        try:
            await self._followed(number, LOAD_TIMEOUT_S)
            refused = self._refusal(name)
            if refused:
                raise invalid(f"the adapter {name!r} cannot be loaded: {refused}", "lora_path", "bad_adapter")
        except BaseException:  # including a cancellation, when the client is gone
            await asyncio.shield(self._change(lambda sources: tuple(one for one in sources if one != source)))
            raise

    async def unload(self, name: str) -> None:
        """Removes an adapter from every worker; returns when new requests cannot name it. Raises `APIError`.

        Requests in progress continue with it; its memory is freed when the last of them has ended.
        """
        self._refuse_unless_allowed()
        found = self._workers.adapters()
        if name in self._names:
            raise invalid(f"{name!r} is the model, and no adapter", "lora_name")
        if name in found and found[name].fixed:
            raise invalid(f"the adapter {name!r} was given at the start (--lora), and stays", "lora_name")

        def without_it(sources: Sources) -> Sources:
            if all(one.name != name for one in sources):
                raise no_model(name, self._names[0], found, "lora_name")
            return tuple(one for one in sources if one.name != name)

        await self._followed(await self._change(without_it), UNLOAD_TIMEOUT_S)

    def _refuse_unless_allowed(self) -> None:
        if not self._config.allow_lora_loading:
            message = "this server loads no adapters at run time: it was started without --allow-lora-loading"
            raise APIError(403, message, code="lora_loading_off")

    async def _change(self, changed: Callable[[Sources], Sources]) -> int:
        now = self._clock.server_now()
        try:
            return (await change(self._store, self._signer, self._config.model, now, changed)).number
        except StoreUnavailable:
            raise unavailable(STORE_AWAY, "registry_unavailable", 2.0) from None

    def _refusal(self, name: str) -> str:
        held = (held for worker in self._workers for held in worker.record.adapters)
        return next((one.error for one in held if one.name == name and one.error), "")

    async def _followed(self, number: int, seconds: float) -> None:
        """Waits until every worker has applied this version of the list. Raises `APIError`."""
        until = time.monotonic() + seconds
        while not all(worker.record.adapter_list >= number for worker in self._workers if worker.usable):
            if time.monotonic() > until:
                raise unavailable(
                    f"a worker has not followed the list of adapters within {seconds:g} s", "workers_behind"
                )
            await asyncio.sleep(CHECK_INTERVAL_S)
