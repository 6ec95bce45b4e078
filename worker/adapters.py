"""A worker's adapters: it loads the adapters listed in Redis, and frees unlisted ones after their last use.

An unlisted adapter is removed in three steps. First gateways see it as leaving, and admit no new requests for it. Then
no request in progress of any gateway uses it, and at last no sequence here does. Until then failed attempts may be
repeated here.

The I/O thread follows the list; loading has its own thread; memory is freed on the engine's thread, between two steps.
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
from infra.redis.records import HEARTBEAT_S, GatewayRecord
from infra.redis.registry import RECORD_PURPOSE as RECORDS
from infra.redis.registry import listed

LEAVE_S = 3 * HEARTBEAT_S  # after which every gateway has reported whether it still uses a leaving adapter
log = logging.getLogger("baton.worker")


class AdapterShelf(Protocol):
    """Adapters' weights by digest; the implementation, `engine.adapters.slots.AdapterSlots`, loads torch."""

    def load(self, directory: Path) -> str:
        """Loads an adapter on any thread, and returns its digest. Raises `AdapterError`."""

    def free(self, digest: str) -> None:
        """Frees an adapter's memory between two steps, on the engine's thread."""


class NoAdapters:
    """The shelf of a worker without adapters."""

    def load(self, directory: Path) -> str:
        raise AdapterError("this worker was started without --lora and without --allow-lora-loading")

    def free(self, digest: str) -> None:
        """Is never called."""


_NO_ADAPTERS = NoAdapters()


class AdapterSigners(NamedTuple):
    """Verify that adapter lists and gateway records were made by this deployment."""

    lists: Signer
    records: Signer

    @classmethod
    def of(cls, secret: bytes) -> "AdapterSigners":
        return cls(Signer(secret, LISTS), Signer(secret, RECORDS))


class LeavingAdapter(NamedTuple):
    """An adapter that was unloaded."""

    held: HeldAdapter
    since: float  # local time, s


class Adapters:
    """A worker's adapters, for all of its threads."""

    def __init__(self, shelf: AdapterShelf = _NO_ADAPTERS, model: str = "", root: str = "") -> None:
        """`model`: as given to the worker. `root`: directory of the adapters that may be loaded at run time."""
        self._shelf = shelf
        self._model = model
        self._root = root
        self._sources: dict[str, AdapterSource] = {}  # from the list, by name
        self.number = 0  # of the last applied list
        self._lock = threading.Lock()  # guards all below
        self._held: dict[str, HeldAdapter] = {}  # by name
        self._leaving: dict[str, LeavingAdapter] = {}  # by digest
        self._unused: set[str] = set()  # digests of leaving adapters that no gateway uses

    # on any thread --------------------------------------------------------------------------------------------------

    def record(self) -> tuple[HeldAdapter, ...]:
        with self._lock:
            return (*self._held.values(), *(each.held for each in self._leaving.values()))

    def has(self, digest: str) -> bool:
        """Whether this worker has an adapter; the empty digest is the model alone."""
        return not digest or any(held.digest == digest for held in self.record())

    # at the start ---------------------------------------------------------------------------------------------------

    def load_fixed(self, sources: Collection[AdapterSource]) -> None:
        """Loads the adapters of `--lora`. Raises `ConfigError`."""
        for source in sources:
            path = Path(source.path).expanduser()
            try:
                digest = self._shelf.load(path)
            except AdapterError as error:
                raise ConfigError("--lora", f"{source.name}={source.path}", str(error)) from None
            self._held[source.name] = HeldAdapter(source.name, path.resolve().name, digest, fixed=True)

    # on the I/O thread ----------------------------------------------------------------------------------------------

    async def follow(self, store: Store, signer: AdapterSigners) -> None:
        """Applies the list in Redis. Raises `StoreUnavailable`."""
        found = await read(store, signer.lists, self._model)
        if found.number > self.number:  # otherwise the list is known, old or lost, and nothing is unloaded
            await self._adopt({source.name: source for source in found.adapters})
            self.number = found.number
        with self._lock:
            due = {digest for digest, each in self._leaving.items() if time.monotonic() - each.since > LEAVE_S}
        if due:
            gateways = await listed(store, signer.records, GatewayRecord)
            used = {digest for record, _ in gateways for digest in record.adapters}
            with self._lock:
                self._unused = (due - used) & self._leaving.keys()  # the engine frees others while Redis answers

    async def follow_for_ever(self, store: Store, signer: AdapterSigners) -> None:
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
            self._unused.clear()  # an adapter that is leaving may be loaded again now
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
        return bool(self._unused)

    def free(self, used: Collection[str]) -> None:
        """Frees leaving adapters that no gateway uses, nor any sequence here; `used`: digests of the sequences here."""
        with self._lock:
            for digest in self._unused - set(used):
                self._unused.discard(digest)
                held = self._leaving.pop(digest).held
                self._shelf.free(digest)
                log.info("freed the adapter %r", held.name)
