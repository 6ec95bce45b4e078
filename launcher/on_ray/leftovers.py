"""Finds and removes actors and placement groups that a deployment without a controller has left in the namespace."""

from contextlib import suppress

import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group_table, remove_placement_group


def leftovers() -> list[str]:
    return sorted(ray.util.list_named_actors())


def remove_leftovers() -> None:
    """Ends all actors of the namespace at once, with their processes, and removes its placement groups."""
    for name in leftovers():
        with suppress(ValueError, RayError):  # the actor has just ended
            ray.kill(ray.get_actor(name), no_restart=True)
    for group in placement_group_table().values():
        if group["name"] and group["state"] != "REMOVED":
            with suppress(ValueError):  # of another namespace
                remove_placement_group(ray.util.get_placement_group(group["name"]))
