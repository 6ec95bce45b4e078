"""Runs plans on one device: plan → batch → forward → adjust → sample → score, launched now and collected later."""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from msgspec import structs
from torch import Tensor

from contracts.kinds import LogprobsMode
from contracts.kv.spec import blocks_for
from contracts.scores import Scores
from engine.backends.adjuster import is_adjusted
from engine.backends.base import OnLayer
from engine.backends.sampler import Draw
from engine.constraints import GrammarConstraints
from engine.device import device_errors, event_on, to_device, to_host
from engine.engine import Engine
from engine.launched_step import LaunchedStep, outcomes_of
from engine.model.batch import Batch, Sampled, block_tables, build_batch
from engine.plan import BlockMove, Proposal, StepPlan, StepResult, TreeKVMoves, Work
from engine.pooling import Pooler
from engine.scoring import StepScoring
from engine.speculation.proposers.model_proposer import ModelProposer
from engine.speculation.proposers.pending_drafts import DraftedTokens, PendingDrafts, before_drafts, with_drafts
from engine.speculation.verify.typical import likely
from engine.speculation.verify.verification import (
    accepted_drafts,
    kv_moves,
    row_count,
    works_by_row,
)
from engine.stored_layers import StoredLayers


class Executor:
    """Runs the plans of one engine. Used by one thread."""

    def __init__(
        self,
        engine: Engine,
        on_layer: OnLayer | None = None,
        constraints: GrammarConstraints | None = None,
        logprobs_mode: LogprobsMode = "raw_logprobs",
        proposer: ModelProposer | None = None,
        *,
        typical: bool = False,
    ) -> None:
        """`on_layer(plan, group, layer)` is called when a step has stored that layer's KV, before the layer attends.

        With several ranks it is called when all of them have stored it.

        It is called on the engine's thread; on CUDA the store is enqueued, and ordered before copies by `KVPool.read`.
        `constraints` computes grammar masks during the forward pass; None: no work has a grammar. `logprobs_mode`: see
        `EngineOptions`. `proposer` drafts tokens after each step. `typical`: typical acceptance, see
        `verify/typical.py`.
        """
        self.engine = engine
        self._on_layer = on_layer
        self._constraints = constraints
        self._proposer = proposer
        self._typical = typical
        self._follower = engine.follower
        self._device = engine.backend.device
        spec = engine.pool.spec
        self._block_size = spec.groups[0].block_tokens
        self._layers = StoredLayers(engine.pool, engine.group, on_layer)
        self._launched: deque[LaunchedStep] = deque()
        self._before: Sampled | None = None
        self._pending = PendingDrafts()
        self._tables = block_tables(len(spec.groups))
        after_filters = logprobs_mode == "processed_logprobs"
        self._scoring = StepScoring(engine.backend.scorer, engine.model_config.vocab_size, after_filters)

    def move(self, moves: Sequence[BlockMove]) -> None:
        """Carries out moves in order, after all launched steps and before later launches and landings.

        Raises `DeviceError` if the device fails, now or in earlier enqueued work.
        """
        if not moves:
            return
        with torch.inference_mode(), device_errors():
            self.engine.peers.move(moves)
            self.engine.pool.move(moves, self.engine.group.collective.barrier)

    def move_tokens(self, moves: Sequence[TreeKVMoves]) -> None:
        """Puts accepted tree KV into text order. Raises `DeviceError` as `move` does."""
        with torch.inference_mode(), device_errors():
            self.engine.peers.move_tokens(moves)
            self.engine.pool.move_tokens(moves, self.engine.group.collective.barrier)

    def launch(self, plan: StepPlan) -> None:
        """Starts a step. On a CPU it has finished on return; on CUDA it runs on.

        At most `launch_depth` steps may be uncollected. Raises `DeviceError` as `move` does.
        """
        assert len(self._launched) < self.engine.launch_depth, "collect before launching another step"
        with torch.inference_mode(), device_errors():
            plan, drafted = self._pending.of(plan)
            recorded = self._is_recorded(plan)
            self.engine.peers.launch(plan, recorded)
            self._launched.append(replace(self._run(plan, drafted, recorded), drafted=drafted))

    def collect(self) -> StepResult:
        """Waits for the oldest launched step and returns its result. Raises `DeviceError` as `move` does."""
        step = self._launched.popleft()
        with device_errors():
            drafting = sum([drafts.wait() for drafts in {each.drafts for each in step.drafted.values()}])
            if step.done is not None:
                step.done.synchronize()
        if step.drafted:
            known = [with_drafts(work, step.drafted.get(work.sequence, ())) for work in step.plan.works]
            step = replace(step, plan=structs.replace(step.plan, works=known))
        works = step.plan.works
        draws = step.draws()
        refused = self._constraints.settle(step.plan, draws.tokens) if self._constraints is not None else {}
        accepted = {index: accepted_drafts(works[index], draws.tokens[index]) for index in draws.rows}
        self._move_tree_kv(works, draws.tokens, accepted)
        prompt_scores, not_finite = self._prompt_scores(step)
        result = StepResult(
            step=step.plan.step,
            tokens=draws.tokens,
            accepted=accepted,
            failed=draws.failed + [index for index in not_finite if index not in draws.failed],
            none_left=draws.none_left,
            refused=refused,
            scores={} if step.scores is None else self._scoring.of_draws(step.scores.numpy(), works, draws.rows),
            prompt_scores=prompt_scores,
            states=step.states_by_work(),
            proposing=drafting,
        )
        return self._with_proposals(step, result)

    def _move_tree_kv(
        self, works: Sequence[Work], tokens: Sequence[list[int]], accepted: Mapping[int, Sequence[int]]
    ) -> None:
        moves = [
            TreeKVMoves(works[index].blocks, places)
            for index, right in accepted.items()
            if (places := kv_moves(works[index], right, len(tokens[index])))
        ]
        if moves:
            self.move_tokens(moves)

    def _prompt_scores(self, step: LaunchedStep) -> tuple[dict[int, Scores], list[int]]:
        if step.prompt_scores is None:
            return {}, []
        return self._scoring.of_prompts(step.prompt_scores.numpy(), step.plan.works)

    def _with_proposals(self, step: LaunchedStep, result: StepResult) -> StepResult:
        if self._proposer is None or step.hidden is None:
            return result
        if self._follower is None and not any([work.propose for work in step.plan.works]):
            return result  # a proposer with its own KV sees every step, even if no work wants draft tokens
        with torch.inference_mode(), device_errors():
            began = time.perf_counter()
            self.engine.peers.propose(result)
            found = self._proposer.propose(step.plan, result, step.hidden)
            self.engine.group.collective.barrier()  # KV may land now, on other ranks too
            proposed = {index: self._proposal(step.plan.works[index], each) for index, each in found.items()}
            seconds = result.proposing + time.perf_counter() - began
            return structs.replace(result, proposed=proposed, proposing=seconds)

    def _proposal(self, work: Work, found: Proposal | DraftedTokens) -> Proposal:
        if isinstance(found, Proposal):
            return found
        # Typical acceptance reads draft tokens at the launch, and other ranks read them in the plan.
        waits = self.engine.launch_depth == 1 or self._typical or self.engine.group.is_divided
        return Proposal(list(found)) if waits else self._pending.proposal(work, found)

    def logits(self, token_ids: Sequence[int], start: int = 0) -> Tensor:
        """Returns the logits fp32 `[tokens - start, vocab]` of one text from position `start` on, for measurements.

        Overwrites the pool's first blocks, except KV of positions before `start`, which must be there.
        """
        engine = self.engine
        blocks = list(range(1, 1 + blocks_for(len(token_ids), self._block_size)))
        assert not self._launched, "steps under way"
        assert len(blocks) < min(engine.pool.counts), "a text larger than the pool"
        engine.pool.begin_step()
        with torch.inference_mode():
            work = Work(0, start, list(token_ids[start:]), (blocks,) * len(engine.pool.counts))
            batch = build_batch(StepPlan(0, [work]), self._block_size, self._device, None)
            batch = replace(batch, logit_rows=torch.arange(len(work.token_ids), device=self._device))
            hidden = engine.model.forward(batch, engine.attention.begin(batch), engine.pool.written)
            return engine.model.logits(hidden).float()

    def _run(self, plan: StepPlan, drafted: Mapping[int, DraftedTokens], recorded: bool) -> LaunchedStep:
        self.engine.pool.begin_step(plan.works, is_read=self._on_layer is not None)
        if self.engine.pooler is not None:
            return self._pooled(plan, self.engine.pooler)
        if self._constraints is not None:
            self._constraints.begin(plan)
        sampled = tuple(index for index, work in enumerate(plan.works) if work.sampling is not None)
        drawn_works = [plan.works[index] for index in sampled]
        works = works_by_row(drawn_works)
        before = before_drafts(self._before, plan.works, drafted)
        states_of_rows, logits, prompt_scores = self._logits(plan, before, recorded)
        states = self._requested_states(plan, states_of_rows)
        hidden = states_of_rows if self._proposer is not None else None
        if not works:
            self._before = Sampled(torch.empty(0, dtype=torch.int64, device=self._device), [])
            nothing = torch.empty((2, 0), dtype=torch.int64)
            return LaunchedStep(plan, (), nothing, None, prompt_scores, hidden, states, event_on(self._device))
        scored = self._scoring.begin(logits, works)
        adjusted = self._adjusted(logits, works)
        draws = [Draw(work.sampling, work.samples, work.output_index) for work in works if work.sampling is not None]
        logits = logits if adjusted is None else adjusted
        tokens, finite = self.engine.backend.sampler.sample(logits, draws)
        tokens = self.engine.group.collective.broadcast(tokens)
        outcomes = finite.long() if adjusted is None else outcomes_of(logits, works, tokens, finite)
        self._before = Sampled(tokens, works)
        likely_rows = [likely(logits, drawn_works, tokens)] if self._typical else []
        results = to_host(torch.stack((tokens, outcomes, *likely_rows)))
        scores = None if scored is None else to_host(self._scoring.drawn(scored, logits, works, tokens))
        return LaunchedStep(plan, sampled, results, scores, prompt_scores, hidden, states, event_on(self._device))

    def _pooled(self, plan: StepPlan, pooler: Pooler) -> LaunchedStep:
        """Runs a step that draws nothing: each text that ends in it has a result of its states."""
        engine = self.engine
        adapters = engine.adapters.slots_of(plan.works) if engine.adapters is not None else None
        batch = build_batch(plan, self._block_size, self._device, None, self._tables, adapters)
        for group, tables in enumerate(batch.groups):
            engine.pool.enter(group, tables.fresh_blocks)
        texts = tuple(index for index, work in enumerate(plan.works) if work.sampling is not None)
        states = self._states(plan, replace(batch, logit_rows=pooler.rows(batch)))
        vectors = pooler.vectors(states, batch)
        outcomes = torch.isfinite(vectors).all(1).long()
        results = to_host(torch.stack((torch.zeros_like(outcomes), outcomes)))
        requested = [row for row, index in enumerate(texts) if plan.works[index].returns_state]
        rows = to_device(np.array(requested, dtype=np.int64), self._device)
        sent = to_host(vectors[rows]) if requested else None
        return LaunchedStep(plan, texts, results, None, None, None, sent, event_on(self._device))

    def _requested_states(self, plan: StepPlan, hidden: Tensor) -> Tensor | None:
        if self._follower is None:
            return None
        sampled = [work for work in plan.works if work.sampling is not None]
        if not any(work.returns_state for work in sampled):
            return None
        rows = np.cumsum([row_count(work) for work in sampled]) - 1
        requested = [row for row, work in zip(rows, sampled, strict=True) if work.returns_state]
        return to_host(hidden[to_device(np.array(requested, dtype=np.int64), self._device)].float())

    def _adjusted(self, logits: Tensor, works: Sequence[Work]) -> Tensor | None:
        """Returns a step's logits after penalties, masks and biases; None if no work needs adjustments.

        fp32 logits are changed in place.
        """
        if not any(map(is_adjusted, works)):  # a grammar is an adjustment too
            return None
        masks = self._constraints.masks(works) if self._constraints is not None else None
        return self.engine.backend.adjuster.adjust(logits, works, self._before, masks)

    def _is_recorded(self, plan: StepPlan) -> bool:
        """Returns whether a recorded step computes this plan."""
        engine, follower = self.engine, self._follower
        observed = self._on_layer is not None or (follower is not None and follower.stores(plan))
        return engine.decode_steps is not None and not observed and engine.decode_steps.serves(plan)

    def _logits(self, plan: StepPlan, before: Sampled | None, recorded: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        """Computes a step's normed states `[sampled rows, hidden]` and logits, and stores its KV.

        Pending tokens are among the tokens of `before`. Also returns the scores of prompts' tokens if a work requests
        them, while they are copied to the host.
        """
        engine = self.engine
        adapters = engine.adapters.slots_of(plan.works) if engine.adapters is not None else None
        follower = self._follower
        if recorded:
            assert engine.decode_steps is not None
            hidden = engine.decode_steps.run(plan.works, before, adapters)
            if self._proposer is not None:  # read at collection, perhaps during the next step
                hidden = hidden.clone()
            engine.pool.all_written()
            if follower is not None and follower.reads(plan):
                follower.note(plan, hidden)
            elif follower is not None:
                follower.skip(plan)
            return hidden, engine.model.logits(hidden) if len(hidden) else hidden, None
        batch = build_batch(plan, self._block_size, self._device, before, self._tables, adapters)
        for group, tables in enumerate(batch.groups):
            engine.pool.enter(group, tables.fresh_blocks)
        hidden = self._states(plan, batch)
        prompt_scores = None
        if batch.split is not None:
            scored = self._scoring.prompts(hidden[batch.split.scored], plan.works, engine.model.logits)
            prompt_scores, hidden = to_host(scored), hidden[batch.split.sampled]
        return hidden, engine.model.logits(hidden) if len(hidden) else hidden, prompt_scores

    def _states(self, plan: StepPlan, batch: Batch) -> Tensor:
        model, step, follower = self.engine.model, self.engine.attention.begin(batch), self._follower

        def stored(layer: int) -> None:
            self._layers.stored(plan, layer)

        if follower is None or not follower.reads(plan):
            if follower is not None:
                follower.skip(plan)
            states = model.forward(batch, step, stored)
            self._layers.end(plan, self._layers.count - 1 - (follower is not None), is_summed=len(states) > 0)
            return states
        every = torch.arange(len(batch.token_ids), device=self._device)
        states = model.forward(replace(batch, logit_rows=every), step, stored)
        if follower.stores(plan):
            follower.store(plan, batch, states, step, stored)
            self._layers.end(plan, self._layers.count - 1, is_summed=False)
        else:
            self._layers.end(plan, self._layers.count - 2, is_summed=True)
        follower.note(plan, states)
        return states[batch.logit_rows]
