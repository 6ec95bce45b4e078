"""Settings of a worker of either role."""

from typing import Annotated

from msgspec import Meta, Struct

from contracts.kinds import Count, FilePath, LogFormat, LogLevel, Positive, Seconds, StatusPath
from infra.config.engine import EngineConfig
from infra.config.place import PlaceOptions
from infra.config.store import StoreConfig
from infra.config.transfer import TransferConfig


class WorkerConfig(Struct, frozen=True, kw_only=True):
    """Runs a prefill or a decode worker."""

    engine: EngineConfig
    store: StoreConfig = StoreConfig()
    transfer: TransferConfig = TransferConfig()
    place: PlaceOptions = PlaceOptions()
    status_file: StatusPath = ""
    busy_page: Annotated[FilePath, Meta(description="file shared by this host's workers to divide its cores")] = ""
    numa_node: Annotated[
        Count | None,
        Meta(description="NUMA node to whose cores and memory a worker on a CPU keeps; default: all nodes"),
    ] = None
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"
    inbox: Annotated[Positive, Meta(description="maximum number of events queued between the two threads")] = 65536
    jobs_ahead: Annotated[
        Positive, Meta(description="maximum number of jobs taken from the stream but not yet running")
    ] = 1024
    gateway_silence: Annotated[Seconds, Meta(description="seconds after which a silent gateway counts as dead")] = 5.0
    drain_seconds: Annotated[Seconds, Meta(description="seconds for running sequences to finish at a shutdown")] = 10.0
    hang_seconds: Annotated[
        float,
        Meta(
            extra={"metavar": "SECONDS"},
            ge=0,
            description="seconds (at least ten of the largest steps) after which a worker with a hanging engine ends "
            "itself; 0: never",
        ),
    ] = 60.0
