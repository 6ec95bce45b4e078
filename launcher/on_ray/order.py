"""Says what an actor on Ray runs, and what the controller keeps: the data that goes from `baton up` to the cluster."""

from msgspec import Struct
from msgspec.structs import replace

from launcher.autoscale.rules import Rules
from launcher.deployment import Role, Service


class Server(Struct, frozen=True, kw_only=True):
    """Says how the deployment's own Redis listens on its node, and where its append-only files are."""

    address: str
    port: int
    password: str
    directory: str = ""  # empty: in the deployment's own directory on that node, and gone with it


class Order(Struct, frozen=True, kw_only=True):
    """Describes one process: everything that the node where it runs does not know by itself."""

    name: str
    deployment: str  # its id, which names its directory on every node
    service: Service
    silent_seconds: float
    redis: str = ""  # URL
    files: dict[str, str] = {}  # contents by name, which only the process's user may read: secret and own keys
    hub: dict[str, str] = {}  # variables of the hub in the environment of `baton up`
    share_port: str = ""  # name of the gateways of one host that have one port
    gateway: str = ""  # URL, for the dashboard
    server: Server | None = None  # where it is the Redis server

    def named(self, name: str) -> "Order":
        """Returns the order of another process of the same service."""
        return replace(self, name=name)


class Plan(Struct, frozen=True, kw_only=True):
    """Describes a deployment on Ray: what the controller starts, keeps and takes down."""

    deployment: str  # its id
    namespace: str  # of Ray's, where its actors have their names
    orders: dict[Role, Order]
    pinned: dict[Role, str]  # the node, by its id, of those services that may run on no other
    cpus: float  # of each worker
    rules: Rules | None  # by which the numbers of workers follow the load; None: they stay
    attached: bool  # a driver watches; without it, it is taken down
