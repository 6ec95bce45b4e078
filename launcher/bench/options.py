"""Options of `baton bench`."""

from typing import Annotated

from msgspec import Meta

from contracts.errors import ConfigError
from contracts.kinds import Count, FilePath, Name, Positive, Seconds
from launcher.bench.load_options import LoadOptions, check_writable
from launcher.options import EndpointCert, EndpointKeyFile, EndpointURL


class BenchConfig(LoadOptions, frozen=True, kw_only=True):
    """Puts a load on an OpenAI-compatible endpoint, and measures what its clients see: TTFT, TPOT and goodput.

    Examples:
      ./baton bench --rate 4
      ./baton bench http://host:8000 --find-goodput --prompt-tokens 512 --output-tokens 64
      ./baton bench --trace mooncake.jsonl
      ./baton bench --compare before.json after.json
    """

    url: EndpointURL = ""
    model: Annotated[Name, Meta(description="name of the model; empty: the first that the endpoint names")] = ""
    api_key_file: EndpointKeyFile = ""
    cert: EndpointCert = ""
    concurrency: Annotated[
        Count,
        Meta(description="clients that each send a request when their last has ended, in place of a rate; 0: a rate"),
    ] = 0
    warm_up: Annotated[
        Count, Meta(description="requests that are sent before, one after the other, and not measured")
    ] = 2
    vocabulary: Annotated[Positive, Meta(description="random token ids are below this")] = 1024
    processes: Annotated[
        Count,
        Meta(description="processes that send; 0: one for each 10000 output tokens/s of the load, at most one a core"),
    ] = 0
    timeout: Annotated[Seconds, Meta(description="seconds without a byte after which a request has failed")] = 60.0
    calibrate: Annotated[
        FilePath,
        Meta(description="file to write the workers' learned step costs to after the load, for simulate --costs"),
    ] = ""
    compare: Annotated[
        str,
        Meta(
            extra={"metavar": "FILE FILE"},
            description="two files that --json wrote: --compare before.json after.json; then --html FILE at most",
        ),
    ] = ""

    def ways(self) -> dict[str, object]:
        return {"--concurrency": self.concurrency, **super().ways()}

    def check(self) -> None:
        """Raises `ConfigError` for options that exclude each other, before anything is sent."""
        if self.concurrency and self.peak:
            raise ConfigError("--peak", self.peak, "cannot be used with --concurrency")
        self.check_load()
        check_writable("--calibrate", self.calibrate)
