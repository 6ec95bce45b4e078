"""Keeps which adapters a worker has: it loads what the list in Redis asks for, and lets go of what nobody uses.

What was unloaded leaves in three steps. Gateways see it as leaving, and admit no new request for it. Then no gateway
has a request in progress that uses it any more, and no sequence here does: so the memory goes when the last one has
ended, and until then attempts that fail may be made anew here.

The I/O thread follows the list; loading runs on a thread of its own; memory is freed on the engine's thread, between
two steps.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple, Protocol

from msgspec import structs

from contracts.adapters import AdapterSource, HeldAdapter, check_name, directory_inside
from contracts.errors import AdapterError, ConfigError, StoreUnavailable
from infra.network.sealing import Signer
from infra.redis.adapter_list import ADAPTER_LIST_PURPOSE as LISTS
from infra.redis.adapter_list import read
from infra.redis.clients import Store
from infra.redis.records import GatewayRecord
from infra.redis.registry import HEARTBEAT_S, listed
from infra.redis.registry import RECORD_PURPOSE as RECORDS

LEAVE_S = 3 * HEARTBEAT_S  # s after which every gateway has said whether it still uses an adapter that leaves
log = logging.getLogger("baton.worker")


class AdapterShelf(Protocol):
    """Keeps adapters' weights by digest, as `engine.adapters.slots.AdapterSlots` does, which loads torch."""

    def load(self, directory: Path) -> str:
        """Loads an adapter and returns its digest, on any thread. Raises `AdapterError` in one sentence."""

    def free(self, digest: str) -> None:
        """Frees an adapter's memory, between two steps, on the engine's thread."""


class NoAdapters:
    """Is the shelf of a worker that has no adapters, and gets none."""

    def load(self, directory: Path) -> str:
        """Refuses."""
        raise AdapterError("this worker was started without --lora and without --allow-lora-loading")

    def free(self, digest: str) -> None:
        """Is never called."""


_NO_ADAPTERS = NoAdapters()


class AdapterSigners(NamedTuple):
    """Holds what tells whether a list of adapters, and a record of a gateway, was made by this deployment."""

    lists: Signer
    records: Signer

    @classmethod
    def of(cls, secret: bytes) -> "AdapterSigners":
        """Makes both from the deployment's secret."""
        return cls(Signer(secret, LISTS), Signer(secret, RECORDS))


class LeavingAdapter(NamedTuple):
    """Holds an adapter that was unloaded."""

    held: HeldAdapter
    since: float  # local time, s


class Adapters:
    """Holds a worker's adapters, for all of its threads."""

    def __init__(self, shelf: AdapterShelf = _NO_ADAPTERS, model: str = "", root: str = "") -> None:
        """`model`: as the worker was given it. `root`: below it are those that may be loaded at run time."""
        self._shelf = shelf
        self._model = model
        self._root = root
        self._sources: dict[str, AdapterSource] = {}  # what the list asked for, by name
        self.number = 0  # of the last list that was followed
        self._lock = threading.Lock()  # of all below
        self._held: dict[str, HeldAdapter] = {}  # by name
        self._leaving: dict[str, LeavingAdapter] = {}  # by digest
        self._unused: set[str] = set()  # digests of those that leave, and that no gateway uses

    # on any thread --------------------------------------------------------------------------------------------------

    def record(self) -> tuple[HeldAdapter, ...]:
        """Returns what the worker's record says of them."""
        with self._lock:
            return (*self._held.values(), *(each.held for each in self._leaving.values()))

    def has(self, digest: str) -> bool:
        """Tells whether a sequence with this adapter can run here; the empty digest is the model alone."""
        return not digest or any(held.digest == digest for held in self.record())

    # at the start ---------------------------------------------------------------------------------------------------

    def load_fixed(self, sources: Collection[AdapterSource]) -> None:
        """Loads what the worker was started with. Raises `ConfigError`."""
        for source in sources:
            path = Path(source.path).expanduser()
            try:
                digest = self._shelf.load(path)
            except AdapterError as error:
                raise ConfigError("--lora", f"{source.name}={source.path}", str(error)) from None
            self._held[source.name] = HeldAdapter(source.name, path.resolve().name, digest, fixed=True)

    # on the I/O thread ----------------------------------------------------------------------------------------------

    async def follow(self, store: Store, signer: AdapterSigners) -> None:
        """Does what the list in Redis asks for. Raises `StoreUnavailable`."""
        found = await read(store, signer.lists, self._model)
        if found.number > self.number:  # else it is known, or was put back, or is lost: nothing leaves for that
            await self._adopt({source.name: source for source in found.adapters})
            self.number = found.number
        due = {digest for digest, each in self._leaving.items() if time.monotonic() - each.since > LEAVE_S}
        if due:
            gateways = await listed(store, signer.records, GatewayRecord)
            used = {digest for record, _ in gateways for digest in record.adapters}
            with self._lock:
                self._unused = due - used

    async def follow_for_ever(self, store: Store, signer: AdapterSigners) -> None:
        """Follows the list until cancelled."""
        while True:
            try:
                await self.follow(store, signer)
            except StoreUnavailable as error:
                log.debug("adapters stay as they are: %s", error)
            await asyncio.sleep(HEARTBEAT_S / 2)

    async def _adopt(self, wanted: dict[str, AdapterSource]) -> None:
        for name in [name for name, source in self._sources.items() if wanted.get(name) != source]:
            del self._sources[name]
            self._leave(name)
        for name, source in wanted.items():
            if name not in self._sources:
                self._sources[name] = source
                await self._load(source)

    async def _load(self, source: AdapterSource) -> None:
        name, root = source.name, Path(source.path).name
        with self._lock:
            self._unused.clear()  # what leaves may be what is loaded now
            if name in self._held:  # given at the start: it stays
                return
        try:
            check_name(name)
            digest = await asyncio.to_thread(self._shelf.load, directory_inside(self._root, source.path))
        except AdapterError as error:
            log.warning("the adapter %r cannot be loaded: %s", name, error)
            held = HeldAdapter(name, root, error=str(error))
        else:
            log.info("loaded the adapter %r", name)
            held = HeldAdapter(name, root, digest)
        with self._lock:
            self._held[name] = held
            self._leaving.pop(held.digest, None)

    def _leave(self, name: str) -> None:
        with self._lock:
            held = self._held[name]
            if held.fixed:
                return
            del self._held[name]
            shared = any(other.digest == held.digest for other in self._held.values())
            if held.digest and not shared:
                leaving = structs.replace(held, leaving=True)
                self._leaving[held.digest] = LeavingAdapter(leaving, time.monotonic())

    # on the engine's thread -----------------------------------------------------------------------------------------

    def has_unused(self) -> bool:
        """Tells whether `free` has something to look at."""
        return bool(self._unused)

    def free(self, used: Collection[str]) -> None:
        """Frees the adapters that leave, and that no gateway uses, nor any of the sequences here, which use `used`."""
        with self._lock:
            for digest in self._unused - set(used):
                self._unused.discard(digest)
                held = self._leaving.pop(digest).held
                self._shelf.free(digest)
                log.info("freed the adapter %r", held.name)
