"""Redis clients from a URL: of one server, of a sentinel service, or of a cluster.

    redis://[user:password@]host:6379/0      one server; rediss:// over TLS; unix:///path of a socket
    redis+sentinel://[user:password@]host:26379,host2:26379/service[/0]     the service's current master
    redis+cluster://[user:password@]host:6379,host2:6379                    a cluster, of which some nodes are named

`rediss+sentinel` and `rediss+cluster` use TLS. Options are parameters with redis-py's names:
`?ssl_ca_certs=/etc/redis/ca.pem`, `?sentinel_password=…`. A password with reserved characters is percent-encoded.
"""

import re
from typing import Any, NamedTuple, cast
from urllib.parse import parse_qsl, unquote, urlsplit

import redis
import redis.asyncio
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import ExponentialBackoff
from redis.driver_info import DriverInfo
from redis.exceptions import RedisClusterException
from redis.retry import Retry

from contracts.errors import ConfigError, StoreUnavailable
from infra.network.bind_address import lacks_brackets

TIMEOUT_S = 5.0  # for any answer; longer than any blocking read
MAX_CONNECTIONS = 16  # of one client; a burst waits for a free one, since a server accepts a limited number
MAX_NODE_CONNECTIONS = 1024  # to a node of a cluster, where bursts cannot wait
SENTINEL_PREFIX = "sentinel_"
DRIVER_INFO = DriverInfo()
"""Made once: a connection that makes its own looks for redis-py's version among all installed packages."""
_HOST_PATTERN = re.compile(r"^(\[[0-9a-fA-F:.]+\]|[^\[\]:]+)(?::(\d{1,5}))?$")

Store = redis.asyncio.Redis


class MultiHostURL(NamedTuple):
    """A parsed URL of several hosts."""

    hosts: list[tuple[str, int]]
    path: list[str]  # service name, database
    options: dict[str, Any]  # for every connection
    of_sentinels: dict[str, Any]  # for connections to sentinels


def connect(url: str) -> Store:
    """Makes an asyncio client without connecting. Raises `ConfigError` for an invalid URL."""
    retry = redis.asyncio.retry.Retry(ExponentialBackoff(cap=0.5, base=0.05), 2)
    usual: dict[str, Any] = {
        "socket_connect_timeout": TIMEOUT_S,
        "socket_timeout": TIMEOUT_S,
        "health_check_interval": 15,
        "driver_info": DRIVER_INFO,
    }
    usual["retry"] = retry  # of sentinels too: redis-py's default would report their absence after 20 s
    waiting: dict[str, Any] = {"max_connections": MAX_CONNECTIONS, "timeout": TIMEOUT_S}
    try:
        match _kind(url):
            case "sentinel":
                place = _multi_host(url, 26379)
                service, database = _service(place)
                at_sentinels = usual | place.of_sentinels
                sentinels = Sentinel(place.hosts, sentinel_kwargs=at_sentinels)  # type: ignore[no-untyped-call]
                options = usual | waiting | place.options | {"db": database}
                master = _WaitingSentinelPool(service, sentinels, **options)  # type: ignore[no-untyped-call]
                return Store.from_pool(master)
            case "cluster":
                place = _multi_host(url, 6379)
                _no_path(place)
                nodes = [ClusterNode(host, port) for host, port in place.hosts]
                options = usual | {"max_connections": MAX_NODE_CONNECTIONS} | place.options
                # It has the same commands, and sends each to the node of its key.
                return cast(Store, RedisCluster(startup_nodes=nodes, **options))
            case _:
                pool = redis.asyncio.BlockingConnectionPool.from_url(url, **usual, **waiting)
                return Store.from_pool(pool)
    except (ValueError, TypeError) as error:
        raise ConfigError("--redis", redacted(url), _why(url, error)) from None


def connect_blocking(url: str) -> redis.Redis:
    """Makes a blocking client, for pages and tools. Raises `ConfigError` for an invalid URL.

    A cluster client connects at once, and raises `StoreUnavailable` if no node answers.
    """
    retry = Retry(ExponentialBackoff(0.5, 0.05), 1)
    usual: dict[str, Any] = {
        "socket_connect_timeout": TIMEOUT_S,
        "socket_timeout": TIMEOUT_S,
        "retry": retry,
        "driver_info": DRIVER_INFO,
    }
    try:
        match _kind(url):
            case "sentinel":
                place = _multi_host(url, 26379)
                service, database = _service(place)
                at_sentinels = usual | place.of_sentinels
                sentinels = redis.Sentinel(place.hosts, sentinel_kwargs=at_sentinels)  # type: ignore[no-untyped-call]
                options = usual | place.options | {"db": database}
                pool = _SentinelPool(service, sentinels, **options)  # type: ignore[no-untyped-call]
                return redis.Redis.from_pool(pool)
            case "cluster":
                place = _multi_host(url, 6379)
                _no_path(place)
                node = redis.cluster.ClusterNode
                nodes = [node(host, port) for host, port in place.hosts]  # type: ignore[no-untyped-call]
                return cast(redis.Redis, redis.RedisCluster(startup_nodes=nodes, **usual | place.options))
            case _:
                return redis.Redis.from_url(url, **usual)
    except (ValueError, TypeError) as error:
        raise ConfigError("--redis", redacted(url), _why(url, error)) from None
    except (redis.RedisError, RedisClusterException) as error:
        raise StoreUnavailable(f"--redis: {redacted(url)!r}: no node of the cluster answers ({error})") from None


def redacted(url: str) -> str:
    password = urlsplit(url).password
    url = url.replace(f":{password}@", ":***@") if password else url
    return re.sub(r"([?&](?:sentinel_)?password=)[^&]*", r"\1***", url)


def _why(url: str, error: Exception) -> str:
    bare = lacks_brackets(url)
    return "an IPv6 address stands in brackets, such as redis://[::1]:6379" if bare else str(error)


class _WaitingSentinelPool(SentinelConnectionPool, redis.asyncio.BlockingConnectionPool):
    """Asks sentinels for the master at each connection; bursts wait for a free connection."""

    async def disconnect(self, inuse_connections: bool = True) -> None:
        """Also closes the connections to the sentinels, if all connections are closed."""
        await super().disconnect(inuse_connections)
        if inuse_connections:
            await self.sentinel_manager.aclose()


class _SentinelPool(redis.sentinel.SentinelConnectionPool):
    def disconnect(self, inuse_connections: bool = True) -> None:
        """Also closes the connections to the sentinels, if all connections are closed."""
        super().disconnect(inuse_connections)
        if inuse_connections:
            for sentinel in self.sentinel_manager.sentinels:
                sentinel.close()


def _kind(url: str) -> str:
    """Returns the suffix of `redis+` or `rediss+` in a URL's scheme; empty without one."""
    first, _, kind = url.partition("://")[0].partition("+")
    if not kind:
        return ""
    if first not in ("redis", "rediss") or kind not in ("sentinel", "cluster"):
        raise ValueError("expected redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://")
    return kind


def _multi_host(url: str, port: int) -> MultiHostURL:
    """Parses a URL of several hosts with default port `port`. Raises `ValueError`."""
    parts = urlsplit(url)
    hosts = []
    for each in parts.netloc.rpartition("@")[2].split(","):
        found = _HOST_PATTERN.match(each)
        if found is None or not 0 < int(found[2] or port) < 65536:
            raise ValueError(f"{each!r} is not host:port")
        hosts.append((found[1].strip("[]"), int(found[2] or port)))
    options: dict[str, Any] = {}
    if parts.username:
        options["username"] = unquote(parts.username)
    if parts.password:
        options["password"] = unquote(parts.password)
    of_sentinels: dict[str, Any] = {}
    if parts.scheme.startswith("rediss"):
        options["ssl"] = of_sentinels["ssl"] = True
    for name, value in parse_qsl(parts.query, strict_parsing=bool(parts.query)):
        said = {"true": True, "false": False}.get(value.lower(), value)
        if name.startswith("ssl_"):
            options[name] = of_sentinels[name] = said
        elif name.startswith(SENTINEL_PREFIX):
            of_sentinels[name.removeprefix(SENTINEL_PREFIX)] = said
        else:
            raise ValueError(f"unknown option {name!r}; there are ssl_… and sentinel_username, sentinel_password")
    return MultiHostURL(hosts, [part for part in parts.path.split("/") if part], options, of_sentinels)


def _service(place: MultiHostURL) -> tuple[str, int]:
    """Returns the service's name and the database. Raises `ValueError`."""
    if not 1 <= len(place.path) <= 2 or not all(part.isdigit() for part in place.path[1:]):
        raise ValueError("expected redis+sentinel://host:26379,…/service, and perhaps /database behind it")
    return unquote(place.path[0]), int(place.path[1]) if len(place.path) == 2 else 0


def _no_path(place: MultiHostURL) -> None:
    if place.path not in ([], ["0"]):
        raise ValueError("a cluster has no databases")
