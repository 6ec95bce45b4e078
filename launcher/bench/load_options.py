"""Options of a load, the same for a measured and for a simulated deployment."""

import os
import random
from collections.abc import Iterator
from itertools import islice, takewhile
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, structs

from contracts.errors import ConfigError
from contracts.kinds import Count, FilePath, LengthsText, Rate, Seconds, TPOTLimit, TTFTLimit
from contracts.slo import SLO
from workloads.arrivals import Arrivals, Profile
from workloads.conversations import ConversationWorkload
from workloads.lengths import Lengths, parse_lengths
from workloads.request import TimedRequest, Workload, timed
from workloads.sharegpt import RecordedChats, read_conversations
from workloads.trace import read_trace

MAX_LOAD_REQUESTS = 1_000_000
MAX_RATE = 1e6
"""Requests per second."""
MAX_PAUSE_S = 86_400.0
REPORT_OPTIONS = ("json", "html")
ONE_TURN = Lengths(1, 1)


class WorkloadOptions(Struct, frozen=True, kw_only=True):
    """Arrivals, lengths, objective and seed."""

    rate: Annotated[Rate, Meta(gt=0, le=MAX_RATE, description="requests per second; with --peak, the lowest rate")] = (
        2.0
    )
    profile: Annotated[
        Profile, Meta(description="how the rate changes from --rate to --peak: constant, ramp, sinusoid or steps")
    ] = "constant"
    peak: Annotated[Rate, Meta(ge=0, le=MAX_RATE, description="highest rate of a profile, in requests per second")] = (
        0.0
    )
    period: Annotated[Seconds, Meta(description="seconds of a ramp, of all steps, or of a sinusoid's wave")] = 60.0
    burstiness: Annotated[
        float,
        Meta(gt=0, description="1: Poisson arrivals; below 1: gamma-distributed gaps with bursts; inf: even gaps"),
    ] = 1.0
    seconds: Annotated[Seconds, Meta(description="seconds for which requests are sent, at each rate")] = 30.0
    requests: Annotated[Count, Meta(description="requests at most; 0: as many as the seconds hold")] = 0
    prompt_tokens: Annotated[
        LengthsText,
        Meta(
            description="lengths of prompts of random token ids: 256, uniform:64-1024, lognormal:300,0.8 (median, "
            "sigma); empty: example chats",
        ),
    ] = ""
    output_tokens: Annotated[
        LengthsText,
        Meta(
            description="lengths of answers, spelled like those of prompts; empty: as each example chat suits",
        ),
    ] = ""
    shared_tokens: Annotated[
        Count, Meta(description="tokens of a prefix that all prompts of token ids share, beyond their own length")
    ] = 0
    turns: Annotated[
        LengthsText,
        Meta(
            description="requests of a conversation, each behind the whole text before it: a number or a distribution",
        ),
    ] = "1"
    turn_tokens: Annotated[
        LengthsText,
        Meta(
            description="tokens that each later turn adds behind the answer, of a person or a tool",
        ),
    ] = "64"
    pause: Annotated[
        float,
        Meta(
            extra={"metavar": "SECONDS"},
            ge=0,
            le=MAX_PAUSE_S,
            description="seconds between an answer and the next turn, on average (exponential)",
        ),
    ] = 0.0
    sharegpt: Annotated[
        FilePath,
        Meta(description="file of recorded conversations in ShareGPT's form, sent as chats; --rate begins them"),
    ] = ""
    trace: Annotated[
        FilePath,
        Meta(description="file of recorded traffic to replay: Mooncake's JSON lines, BurstGPT's or Azure's CSV"),
    ] = ""
    trace_speed: Annotated[
        float, Meta(extra={"metavar": "FACTOR"}, gt=0, description="2: the trace's requests come twice as fast")
    ] = 1.0
    share: Annotated[
        float, Meta(extra={"metavar": "SHARE"}, gt=0, lt=1, description="share of good requests that is wanted")
    ] = 0.9
    slo_ttft_ms: TTFTLimit = 2000.0
    slo_tpot_ms: TPOTLimit = 100.0
    seed: Annotated[Count, Meta(description="seed of arrivals, lengths and prompts")] = 0

    def slo(self) -> SLO:
        return SLO(self.slo_ttft_ms, self.slo_tpot_ms)

    def arrivals(self) -> Arrivals:
        """Raises `ConfigError` for a profile without a peak above the rate, and for a peak without a profile."""
        if (self.profile == "constant") != (self.peak == 0):
            raise ConfigError(
                "--peak", self.peak, f"goes with --profile ramp, sinusoid or steps, not with {self.profile}"
            )
        if self.peak and self.peak <= self.rate:
            raise ConfigError("--peak", self.peak, f"must be above --rate {self.rate:g}")
        return Arrivals(self.rate, self.profile, self.peak, self.period, self.burstiness)

    def workload(self) -> Workload | ConversationWorkload | RecordedChats:
        """Raises `ConfigError` for lengths or conversations that cannot be read, or that a workload lacks."""
        prompt = parse_lengths(self.prompt_tokens, "--prompt-tokens") if self.prompt_tokens else None
        output = parse_lengths(self.output_tokens, "--output-tokens") if self.output_tokens else None
        if self.sharegpt:
            return self._recorded_chats(output)
        if prompt is not None and output is None:
            raise ConfigError("--output-tokens", "", "random token ids suit no length; say how long each answer is")
        if prompt is None and self.shared_tokens:
            raise ConfigError(
                "--shared-tokens", self.shared_tokens, "needs --prompt-tokens: example chats share no prefix"
            )
        first = Workload(prompt, output, self.shared_tokens)
        turns, added = parse_lengths(self.turns, "--turns"), parse_lengths(self.turn_tokens, "--turn-tokens")
        if turns == ONE_TURN:
            if self.pause:
                raise ConfigError("--pause", self.pause, "is between turns: say --turns or --sharegpt")
            return first
        if prompt is None:
            raise ConfigError("--turns", self.turns, "needs --prompt-tokens: example chats have one turn")
        return ConversationWorkload(first, turns, added, self.pause)

    def check_workload(self) -> None:
        """Raises `ConfigError` for arrivals or lengths that make no load, and for options that a trace does not use."""
        if not self.trace and self.trace_speed != 1.0:
            raise ConfigError("--trace-speed", self.trace_speed, "needs --trace")
        recorded = {
            "--prompt-tokens": self.prompt_tokens,
            "--output-tokens": self.output_tokens,
            "--shared-tokens": self.shared_tokens,
            "--turns": self.turns if self.turns != "1" else "",
            "--peak": self.peak,
        }
        for name, value in recorded.items():
            if value and self.trace:
                raise ConfigError(name, value, "cannot be used with --trace, whose arrivals and lengths are recorded")
        self.arrivals()
        self.workload()

    def _recorded_chats(self, output: Lengths | None) -> RecordedChats:
        others = {
            "--prompt-tokens": self.prompt_tokens,
            "--shared-tokens": self.shared_tokens,
            "--turns": self.turns if self.turns != "1" else "",
            "--trace": self.trace,
        }
        for name, value in others.items():
            if value:
                raise ConfigError(name, value, "cannot be used with --sharegpt, whose prompts are the recorded ones")
        return RecordedChats(read_conversations(Path(self.sharegpt)), self.pause, output)

    def chance(self, load: int = 0) -> random.Random:
        """Returns what the load of this number draws from, the same for a measured and for a simulated deployment.

        No load of another seed draws the same, so that no cache has its prompts.
        """
        return random.Random(f"{self.seed} {load}" if load else self.seed + 1)

    def timed_requests(self, chance: random.Random) -> Iterator[TimedRequest]:
        """Yields the requests of an open load. Raises `ConfigError` for a trace that cannot be read."""
        most = self.requests or MAX_LOAD_REQUESTS
        if self.trace:
            return islice(read_trace(Path(self.trace), self.trace_speed), most)
        times = takewhile(lambda at: at < self.seconds, self.arrivals().times(chance))
        return timed(times, self.workload().requests(chance), most)


class LoadOptions(WorkloadOptions, frozen=True, kw_only=True):
    """A load, the rates at which it is measured, and the files of its reports."""

    find_goodput: Annotated[
        bool, Meta(description="search the highest rate at which --share of the requests are good")
    ] = False
    bisections: Annotated[Count, Meta(description="rates between the last good and the first bad rate")] = 4
    sweep: Annotated[
        str,
        Meta(
            extra={"metavar": "RATES"},
            description="rates to measure one after the other, such as 1,2,4,8; empty: --rate alone",
        ),
    ] = ""

    json: Annotated[FilePath, Meta(description="file to write the report to; docs/foresight.md describes its form")] = (
        ""
    )
    html: Annotated[
        FilePath, Meta(description="file to write the report to as a page with charts, which needs nothing else")
    ] = ""
    sweep_prompts: Annotated[
        str,
        Meta(
            extra={"metavar": "LENGTHS,…"},
            description="lengths of prompts to measure one after the other, such as 64,1024, at each rate",
        ),
    ] = ""

    def rates(self) -> list[float]:
        """Returns the rates of `--sweep`. Raises `ConfigError`."""
        try:
            rates = [float(rate) for rate in self.sweep.split(",")]
        except ValueError:
            rates = []
        if not rates or not all(0 < rate < float("inf") for rate in rates):
            raise ConfigError(
                "--sweep", self.sweep, "expected requests per second with commas between them, such as 1,2,4"
            )
        return rates

    def ways(self) -> dict[str, object]:
        """Returns the given options that decide when requests are sent; a load has at most one such option."""
        return {"--trace": self.trace, "--find-goodput": self.find_goodput, "--sweep": self.sweep}

    def check_load(self) -> None:
        """Raises `ConfigError` for arrivals, lengths or rates that make no load, and for two ways of one."""
        ways = self.ways()
        given = [name for name, value in ways.items() if value]
        if len(given) > 1:
            raise ConfigError(given[1], ways[given[1]], f"cannot be used with {given[0]}")
        if given and self.peak:
            raise ConfigError("--peak", self.peak, f"cannot be used with {given[0]}")
        for length in self.prompt_lengths():
            structs.replace(self, prompt_tokens=length).check_workload()
        if self.sweep:
            self.rates()
        for name in REPORT_OPTIONS:
            check_writable(f"--{name}", getattr(self, name))

    def prompt_lengths(self) -> list[str]:
        """Returns the lengths of `--sweep-prompts`, or the one length option of all requests. Raises `ConfigError`."""
        if not self.sweep_prompts:
            return [self.prompt_tokens]
        if self.prompt_tokens or not (self.sweep or self.find_goodput):
            raise ConfigError(
                "--sweep-prompts",
                self.sweep_prompts,
                "goes with --sweep or --find-goodput, not with --prompt-tokens",
            )
        lengths = self.sweep_prompts.split(",")
        for length in lengths:
            parse_lengths(length, "--sweep-prompts")
        return lengths


def check_writable(option: str, path: str) -> None:
    """Raises `ConfigError` for a file that cannot be written, before a load has run for hours; changes no file."""
    if not path:
        return
    file = Path(path)
    there = file if file.exists() else file.parent
    if file.is_dir():
        raise ConfigError(option, path, "is a directory")
    if not there.exists():
        raise ConfigError(option, path, "its directory does not exist")
    if not os.access(there, os.W_OK):
        raise ConfigError(option, path, "cannot be written")
