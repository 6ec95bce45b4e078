"""Opens a link's channel on the prefill side, over the best working transport that both ends have."""

import logging
import os
import secrets
import socket
from collections.abc import Collection

import zmq
import zmq.asyncio

from contracts.errors import ConfigError, DeviceError
from contracts.kinds import Transport
from contracts.kv.spec import KVSpec
from contracts.messages.handoff import Join, Offer
from contracts.messages.wire import VERSION
from infra.config.transfer import TransferConfig
from infra.memory.shared_mapping import shared_memory
from infra.network.addresses import Network
from infra.network.sockets import payload_dealer
from kvtransfer.memory import KVDevices
from kvtransfer.transports.channel import Channel
from kvtransfer.transports.nixl.agents import NixlAgents, has_rdma
from kvtransfer.transports.nixl.channel import NixlChannel
from kvtransfer.transports.pool.channel import PoolChannel
from kvtransfer.transports.pool.device_channel import DevicePoolChannel
from kvtransfer.transports.shm.channel import RingChannel
from kvtransfer.transports.shm.ring import Ring
from kvtransfer.transports.shm.ring_socket import RingQueueFull, check_own_socket, hand_over
from kvtransfer.transports.sockets.channel import SocketChannel
from kvtransfer.transports.sockets.seal import SALT_HALF_BYTES, FrameSealer, session_key

BEST_FIRST: tuple[Transport, ...] = ("pool", "shm", "ipc", "nixl", "tcp")
log = logging.getLogger("baton.handoff")


def transports(config: TransferConfig) -> tuple[Transport, ...]:
    """Lists the transports that a worker may use, the best first."""
    if config.kv_transport != "auto":
        return (config.kv_transport,)
    return tuple(name for name in BEST_FIRST if name != "nixl" or has_rdma())


def start_nixl(config: TransferConfig, network: Network) -> NixlAgents | None:
    """Starts the library if the settings allow it. Raises `ConfigError` if they ask for it and it does not start."""
    if "nixl" not in transports(config):
        return None
    try:
        agents = NixlAgents(network.bind.host)
    except ConfigError as error:
        if config.kv_transport == "nixl":
            raise
        log.warning("KV passes over tcp between hosts: %s", error)
        return None
    log.warning("KV over nixl is not sealed: keep its network to this deployment's hosts, or let the fabric encrypt")
    return agents


class Joining:
    """Makes the Join of a link, and its channel from the Offer."""

    def __init__(
        self,
        config: TransferConfig,
        ends: tuple[str, str],
        network: Network,
        spec: KVSpec,
        control: zmq.asyncio.Socket,
        address: str,
        agents: NixlAgents | None = None,
        without: Collection[Transport] = (),
        devices: KVDevices | None = None,
    ) -> None:
        """`ends` are the epochs, ours and the peer's; `spec` is of the pool that payloads come from.

        `control` is the link's own socket, connected to `address`. Transports in `without`, over which nothing arrived,
        are used only if there are no others. `agents` are of NIXL, if it may be used; `devices` are our pool in GPUs.
        """
        sender, receiver = ends
        self.join = Join(
            sender=sender,
            receiver=receiver,
            transports=tuple(name for name in transports(config) if name != "nixl" or agents is not None),
            security=config.kv_security,
            nonce=secrets.token_bytes(SALT_HALF_BYTES),
            connections=config.link_connections,
        )
        self.silence = config.silence
        self._config = config
        self._network = network
        self._spec = spec
        self._agents = agents
        self._without = without
        self._devices = devices
        self._control = control
        self.payload_address = ""  # of the TCP channel
        self._queue_was_full = False
        self._host = address.removeprefix("tcp://").rpartition(":")[0]

    def pause(self, joined: bool) -> float:
        """Returns the seconds until Join is repeated: short before the answer, then long."""
        return self._config.remember / 4 if joined else self._config.repeat_ms / 1000

    def channel(self, offer: Offer) -> Channel | None:
        """Opens the first transport of the Offer that works; None if none does. Never raises for invalid offers.

        Raises `RingQueueFull` once: many links have joined at the same time, and the next Offer may find room.
        """
        if offer.version != VERSION:
            log.warning("decode worker %s speaks version %d, this worker %d", offer.sender, offer.version, VERSION)
            return None
        passed_over = [f"; {name} brought nothing before" for name in self._without]
        for name in [name for name in self.join.transports if name not in self._without] or self.join.transports:
            try:
                found = self._channel(name, offer)
            except RingQueueFull as error:
                if not self._queue_was_full:
                    self._queue_was_full = True
                    raise
                passed_over.append(f"; not over {name}: {error}")
                continue
            except (
                OSError,
                ValueError,
                DeviceError,
                zmq.ZMQError,
            ) as error:  # another host's or user's, or malformed
                passed_over.append(f"; not over {name}: {error}")
                continue
            how = "sealed" if found.sealed else "not sealed"
            why = "".join(passed_over)
            log.info("KV goes to decode worker %s over %s, %s%s", offer.sender, found.transport, how, why)
            return found
        log.warning("decode worker %s has no transport for KV that works%s", offer.sender, "".join(passed_over))
        return None

    def _channel(self, transport: Transport, offer: Offer) -> Channel:
        frame = self._config.frame
        fields = {"pool": offer.pool, "shm": offer.ring, "ipc": offer.ipc, "nixl": offer.nixl, "tcp": offer.tcp}
        if not fields[transport]:
            raise ValueError("not offered")
        if transport == "pool":
            return self._pool(offer)
        if transport == "shm":
            return RingChannel(self._ring(offer), self._control, frame)
        if transport == "ipc":
            check_own_socket(offer.ipc.removeprefix("ipc://"))
            return SocketChannel(transport, [self._socket(offer.ipc, offer)], None, frame)
        if transport == "nixl":
            return self._nixl(offer)
        sealer = None
        if "sealed" in (offer.security, self.join.security):
            key = session_key(self._network.secret, (self.join.nonce, offer.nonce), (self.join.sender, offer.sender))
            sealer = FrameSealer(key)
        self.payload_address = f"tcp://{self._host}:{offer.tcp}"
        return SocketChannel(transport, self._sockets(self.payload_address, offer), sealer, frame)

    def _pool(self, offer: Offer) -> PoolChannel:
        """Asks to be let into the pool. Raises `ValueError` if blocks would have to be converted."""
        if self._config.kv_codec != "none":
            raise ValueError("KV is compressed")
        if offer.pool != self._spec.fingerprint() or len(offer.counts) != len(self._spec.groups):
            raise ValueError("its blocks have another form")
        check_own_socket(offer.shm)
        into = self._spec, offer.counts, self._control, self._config.frame
        if not offer.devices:
            return PoolChannel(self._asked(offer), *into)
        if self._devices is None:
            raise ValueError("its pool is in a GPU, and this worker has none")
        peer = self._devices.opened(offer.devices, offer.counts)
        return DevicePoolChannel(self._asked(offer), *into, peer)

    def _asked(self, offer: Offer) -> socket.socket:
        """Returns the socket by which the decode worker lets this one into its pool, and watches it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            ours.setblocking(False)
            hand_over(offer.shm, offer.user, offer.token, theirs.fileno())
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return ours

    def _ring(self, offer: Offer) -> Ring:
        """Makes a ring of the size that the decode worker asks for, and hands it over."""
        self._check_size(offer.ring)
        check_own_socket(offer.shm)
        descriptor = shared_memory("baton-kv", offer.ring)
        try:
            ring = Ring(descriptor, offer.ring)
            try:
                hand_over(offer.shm, offer.user, offer.token, descriptor)
            except BaseException:
                ring.close()
                raise
        finally:
            os.close(descriptor)
        return ring

    def _nixl(self, offer: Offer) -> NixlChannel:
        assert self._agents is not None and offer.nixl is not None, "a transport of both ends"
        self._check_size(offer.nixl.size)
        return NixlChannel(self._agents, offer.nixl, offer.token, self._control, self._config.frame)

    def _check_size(self, ring: int) -> None:
        largest = max(self._config.frame, *(group.block_bytes for group in self._spec.groups))
        if ring < largest:
            raise ValueError(f"payloads have up to {largest} bytes, its ring has {ring}")

    def _sockets(self, endpoint: str, offer: Offer) -> list[zmq.asyncio.Socket]:
        """Makes a socket for each connection; several have identities that begin with the user's."""
        if self.join.connections == 1:
            return [self._socket(endpoint, offer)]
        made: list[zmq.asyncio.Socket] = []
        try:
            for number in range(self.join.connections):
                made.append(self._socket(endpoint, offer, bytes([number])))
        except BaseException:
            for each in made:
                each.close(0)
            raise
        return made

    def _socket(self, endpoint: str, offer: Offer, name: bytes = b"") -> zmq.asyncio.Socket:
        if not offer.user or not offer.token:
            raise ValueError("an Offer of sockets has a user and a token")
        identity = bytes.fromhex(offer.user) + name
        return payload_dealer(self._network.context, endpoint, identity, offer.user, offer.token)
