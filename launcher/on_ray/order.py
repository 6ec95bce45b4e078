"""Defines the data that `baton up` sends to the cluster: an order for each actor, and the controller's plan."""

from msgspec import Struct
from msgspec.structs import replace

from launcher.autoscale.rules import Rules
from launcher.deployment import Role, Service


class RedisServer(Struct, frozen=True, kw_only=True):
    """Address, password and directory of the deployment's own Redis."""

    address: str
    port: int
    password: str
    directory: str = ""  # of append-only files; empty: in the deployment's directory on the node, removed with it


class Order(Struct, frozen=True, kw_only=True):
    """Everything about one process that its node cannot find out by itself."""

    name: str
    deployment: str  # id, which names the deployment's directory on every node
    service: Service
    silent_seconds: float
    redis: str = ""  # URL
    files: dict[str, str] = {}  # name → content of files that only the process's user may read: secret, operator key
    hub: dict[str, str] = {}  # the hub's variables from the environment of `baton up`
    share_port: str = ""  # name that gateways of one host with one port share
    gateway: str = ""  # URL, for the dashboard
    server: RedisServer | None = None  # of the Redis server's process only

    def named(self, name: str) -> "Order":
        return replace(self, name=name)


class RayPlan(Struct, frozen=True, kw_only=True):
    """A deployment on Ray, which the controller starts, watches and takes down."""

    deployment: str  # its id
    namespace: str  # Ray namespace of the actors' names
    orders: dict[Role, Order]
    pinned: dict[Role, str]  # role → id of the only node on which it may run
    cpus: float  # CPUs of each worker
    rules: Rules | None  # of --autoscale; None: the numbers of workers are fixed
    attached: bool  # the deployment ends with the `baton up` that started it
