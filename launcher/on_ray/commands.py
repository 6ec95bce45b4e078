"""Shows the deployment on a Ray cluster (`./baton status --on ray`), and ends it (`./baton down`)."""

from collections.abc import Sequence

from contracts.errors import BatonError
from infra.cli import parse
from launcher.host.signals import Signals
from launcher.on_ray.cluster import ClusterError, connected
from launcher.on_ray.leftovers import leftovers, remove_leftovers
from launcher.on_ray.reports import Reports, controller, table, taken_down
from launcher.options import DownConfig, RayPlace, StatusConfig
from launcher.refusal import refused
from launcher.stages import StageDisplay


def status(arguments: Sequence[str]) -> int:
    """Prints the overview. Returns the exit status: 0 running, 1 not running, 2 no deployment."""
    try:
        place = parse(StatusConfig, arguments, "baton status")
        with connected(place.ray_address, place.ray_namespace):
            handle = controller(place.ray_namespace)
            if handle is None:
                raise ClusterError(_nothing(place))
            overview = Reports(handle, StageDisplay()).ask()
    except BatonError as error:
        return refused(error)
    print(table(overview))
    return 0 if overview.phase == "running" else 1


def down(arguments: Sequence[str]) -> int:
    """Ends the deployment. Returns the exit status: 0 ended, 2 no deployment."""
    stages = StageDisplay()
    try:
        place = parse(DownConfig, arguments, "baton down")
        with Signals().installed() as signals, connected(place.ray_address, place.ray_namespace):
            handle = controller(place.ray_namespace)
            if handle is not None:
                taken_down(handle, stages, signals)
            elif not leftovers():
                raise ClusterError(_nothing(place))
            remove_leftovers()
    except BatonError as error:
        stages.settle()
        return refused(error)
    return 0


def _nothing(place: RayPlace) -> str:
    return f"--ray-namespace: {place.ray_namespace!r}: no deployment runs there; ./baton up --on ray starts one"
