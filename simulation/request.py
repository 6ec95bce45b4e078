"""A simulated request in progress: what its client has seen, and what the gateway knows of it."""

from gateway.requests.entrance import Visit
from gateway.requests.request import Request
from simulation.senders import SimulatedSender
from workloads.request import TimedRequest


class SimulatedRequest:
    """A request in progress, as its client sees it."""

    def __init__(self, timed: TimedRequest, sender: SimulatedSender, request: Request, visit: Visit) -> None:
        self.due_s = timed.due_s
        self.then = timed.request.then
        self.sender = sender
        self.request = request
        self.visit = visit
        self.sample = request.samples[0]
        self.checks = 0  # number of the newest planned check at the gate
        self.counted = False  # the gateway's demand includes this request
        self.first_s = self.last_s = 0.0  # when its first and its last token so far came
        self.gaps_ms: list[float] = []
