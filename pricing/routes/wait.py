"""Time to first token on one worker: its queue as far as it comes before a new prompt, and the prompt's computation.

    T = min(C + max(Q·u, Q - φ·t) + H, P)          all in seconds

    C   the prompt's own computation, beside the worker's decodes
    φ   share of the queued tokens that is computed before the prompt ends: tenants take turns by weight
    Q   computation of that share of the queue
    t   age of the worker's report; the worker has spent all of it on the queue
    u   share of Q that is surely not computed yet: prompts whose first token has not come, less at most
        1 - MIN_LEFT of the running step
    H   half of the running step where the prompt overtakes other tenants' prompts, else 0
    P   a prompt that is shorter than a step overtakes long prompts, since each step leaves a share of its tokens to
        short ones: half of the running step, and as many steps as the shorter prompts and itself need; else infinite

Age and awaited tokens correct for reports that are up to a second old.
"""

from math import ceil, inf

from pricing.routes.backlog import Backlog, PromptWork, length_class
from pricing.step_costs.steps import StepCosts, pairs_of

MIN_LEFT = 0.4
"""Least share of the running step that remains, however old the report: had the step ended, the first tokens of its
prompts would have come."""
RUNNING_LEFT = 0.5  # share of the running step that remains on average, when a prompt arrives


def first_token_seconds(
    costs: StepCosts, backlog: Backlog, prompt: PromptWork, report_age: float = 0.0, awaited: int = 0
) -> float:
    """Predicts the seconds until a prompt that comes now has its first token, as its tenant's last prompt.

    `report_age`: seconds since the backlog was reported. `awaited`: tokens of the backlog that are surely not computed
    before the running step.
    """
    decodes = backlog.sequences, backlog.context
    if not backlog.tokens:
        return costs.prompt_seconds(prompt.tokens, prompt.pairs, *decodes)
    step_tokens = costs.most_tokens or backlog.tokens
    share = backlog.before(prompt)
    before, before_pairs = round(share * backlog.tokens), share * backlog.pairs
    own = costs.prompt_seconds(prompt.tokens, prompt.pairs, *decodes)
    queue = costs.prompt_seconds(before + prompt.tokens, before_pairs + prompt.pairs, *decodes) - own
    undone = float(min(awaited, before))
    undone -= (1 - MIN_LEFT) * min(step_tokens, undone)
    wait = queue - share * (backlog.age_ms / 1000 + report_age)
    wait = max(wait, queue * undone / before if before else 0.0)
    if share < 1.0:
        wait += RUNNING_LEFT * costs.prompt_token * min(step_tokens, backlog.tokens)
    return min(own + wait, _overtaking(costs, backlog, prompt, share))


def _overtaking(costs: StepCosts, backlog: Backlog, prompt: PromptWork, share: float) -> float:
    """Returns the seconds to the first token of a prompt that overtakes long ones; infinite where it cannot."""
    step_tokens = costs.most_tokens
    per_step = int(costs.shorter * step_tokens)  # tokens that a step leaves to short prompts
    long_queued = any(backlog.lengths[length_class(step_tokens - 1) + 1 :])
    if not per_step or prompt.tokens > step_tokens or not long_queued:
        return inf
    step = costs.prompt_seconds(step_tokens, pairs_of(0, step_tokens), backlog.sequences, backlog.context)
    return (ceil((share * backlog.shorter(prompt) + prompt.tokens) / per_step) + RUNNING_LEFT) * step
