"""A service of an instance, its current process, and when it is started again."""

from dataclasses import dataclass

from launcher.host.child import Child
from launcher.host.process import READY_STAGE, Process
from launcher.host.pulse import Pulse
from launcher.instance.instances import ServiceState

FIRST_RESTART_DELAY_S = 1.0  # after an early death; doubled by each further early death
MAX_RESTART_DELAY_S = 30.0
MIN_LIFE_S = 60.0  # a process that ends sooner died early
UNLOADED_STAGE = "unloaded"


@dataclass
class SupervisedService:
    """A process of the deployment with its current child process. Times are `time.monotonic`, in seconds."""

    process: Process
    child: Child
    pulse: Pulse
    born: float  # start of the child
    early_deaths: int = 0  # in a row
    ready: bool = False
    was_ready: bool = False  # before it died
    stage: str = "starting"
    restart_at: float | None = None  # the child has died
    rests_since: float | None = None  # its idle model was unloaded: the child was told to end, and is not restarted
    restarts: int = 0
    address: str = ""  # at which it serves, if its status has one

    def state(self) -> ServiceState:
        name, restarts = self.process.name, self.restarts
        if self.rests_since is not None:
            return ServiceState(name, UNLOADED_STAGE, restarts=restarts)
        if self.restart_at is not None:
            return ServiceState(name, "died, and is started again", restarts=restarts)
        if self.ready:
            return ServiceState(name, READY_STAGE, self.child.pid, self.address, restarts)
        return ServiceState(name, self.stage, self.child.pid, restarts=restarts)


def restart_delay(early_deaths: int) -> float:
    """Returns the delay of a restart, in seconds, after `early_deaths` early deaths in a row."""
    return min(FIRST_RESTART_DELAY_S * 2 ** (early_deaths - 1), MAX_RESTART_DELAY_S) if early_deaths else 0.0
