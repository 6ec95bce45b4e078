"""The demand of a load on a deployment: the figures of its requests that a plan's estimates need."""

from collections.abc import Sequence
from statistics import fmean

from launcher.planning.options import PlanConfig
from pricing.planning.load import PlannedLoad, PromptSize
from workloads.request import PlannedRequest, TimedRequest

SAMPLE_PROMPTS = 64
TRACE_PARTS = 10
"""Number of equal parts of a trace; the rate of the busiest part counts as the trace's rate."""


def demand(config: PlanConfig, requests: Sequence[TimedRequest]) -> PlannedLoad:
    turns = [turn for each in requests for turn in each.request.turns()]
    prompts = sorted(_prompts(turns), key=lambda prompt: prompt.tokens)
    every = max(1, len(prompts) // SAMPLE_PROMPTS)
    each_turns = len(turns) / len(requests)
    span_s = config.seconds if not config.trace else max(1.0, requests[-1].due_s)
    return PlannedLoad(
        rate=_busiest_rate(requests) if config.trace else each_turns * (config.peak or config.rate),
        mean_rate=len(turns) / span_s,
        prompts=prompts[every // 2 :: every],
        output_tokens=fmean(turn.output_tokens for turn in turns),
        longest=max(turn.prompt_tokens + turn.output_tokens for turn in turns),
        ttft_s=config.slo_ttft_ms / 1000,
        tpot_s=config.slo_tpot_ms / 1000,
        share=config.share,
    )


def _prompts(requests: Sequence[PlannedRequest]) -> list[PromptSize]:
    """Returns the size of each prompt; leading spans with which an earlier prompt began count as cached."""
    known: set[int] = set()
    found = []
    for request in requests:
        chain = cached = 0
        for span in request.spans:
            chain = hash((chain, span.seed))
            if chain in known and cached + span.tokens < request.prompt_tokens:
                cached += span.tokens
            known.add(chain)
        found.append(PromptSize(request.prompt_tokens - cached, cached))
    return found


def _busiest_rate(requests: Sequence[TimedRequest]) -> float:
    part_s = max(1.0, requests[-1].due_s) / TRACE_PARTS
    parts = [0] * (TRACE_PARTS + 1)
    for request in requests:
        parts[int(request.due_s / part_s)] += 1
    return max(parts) / part_s
