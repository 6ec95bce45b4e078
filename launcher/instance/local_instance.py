"""Chooses the instance on this host that a command is about."""

from contracts.errors import BatonError, ConfigError
from launcher.instance.instances import Instance, ServiceState, recorded

NOTHING_RUNS = "no instance of this user runs on this host; ./baton up starts one"


def local_instance(url: str) -> Instance:
    """Returns the instance with this URL, or with an empty one the only instance. Raises a `BatonError`."""
    found = recorded()
    if not found:
        raise BatonError(NOTHING_RUNS)
    named = [each for each in found if each.url == url.rstrip("/").removesuffix("/v1")] if url else found
    if len(named) == 1:
        return named[0]
    raise ConfigError(
        "--url", url or None, f"names one of the running instances: {', '.join(each.url for each in found)}"
    )


def service_of(instance: Instance, name: str) -> ServiceState:
    """Raises `ConfigError` if the instance has no service of this name."""
    named = next((each for each in instance.services if each.name == name), None)
    if named is None:
        names = ", ".join(each.name for each in instance.services)
        raise ConfigError("SERVICE", name, f"{instance.url} has none of this name; its services are {names}")
    return named
