"""Makes the parts of a worker that plan its steps: block manager, scheduler, speculation, step costs."""

from functools import partial
from math import ceil

from msgspec import structs

from engine.blocks.key_changes import KeyChanges
from engine.blocks.manager import BlockManager
from engine.grammars.preparation import Preparation
from engine.schedule.admission import GROWTH_SHARE
from engine.schedule.chunking import Chunking
from engine.schedule.prompt_turns import SHORTER_PROMPTS_SHARE
from engine.schedule.scheduler import Scheduler, SchedulerLimits
from engine.schedule.speculation import Speculation
from engine.speculation.control.controller import DraftController
from engine.speculation.proposers.earlier_answers import EarlierAnswers
from engine.speculation.proposers.ngram import NGramProposer
from engine.speculation.proposers.proposer import EngineProposer
from engine.start.load import LoadedEngine
from infra.config.engine import EngineConfig
from infra.config.speculation import MAX_DRAFT_TOKENS, proposing
from infra.config.worker import WorkerConfig
from infra.redis.records import Role as RoleName
from pricing.rates import worth_bringing_back
from pricing.step_costs.fit import StepFit
from pricing.step_costs.steps import StepCosts

MAX_CPU_DRAFT_TOKENS = 4
"""The default of draft tokens on a CPU, where each row is computed: more draft tokens have cost more than they gained.

With so few, Medusa trees seldom branch, and rows of a chain have the same bits as steps without draft tokens.
"""


def make_block_manager(config: WorkerConfig, engine: LoadedEngine) -> BlockManager:
    spec = engine.pool.spec
    worth = partial(
        worth_bringing_back,
        block_bytes=spec.groups[0].layers_bytes(),
        block_tokens=config.engine.block_size,
        rates=engine.rates,
    )
    ahead = engine.launch_depth * engine.step_tokens
    return BlockManager(spec, engine.pool.counts, engine.host_slots, worth, ahead, KeyChanges())


def make_scheduler(
    name: RoleName,
    config: WorkerConfig,
    engine: LoadedEngine,
    blocks: BlockManager,
    preparation: Preparation,
    fit: StepFit,
) -> Scheduler:
    pooler = engine.pooler
    return Scheduler(
        blocks,
        SchedulerLimits(
            max_batch_tokens=engine.step_tokens,
            max_sequences=config.engine.max_sequences,
            max_model_len=engine.model_config.max_model_len + (pooler is not None),  # a text has nothing behind it
            growth_reserve=[ceil(GROWTH_SHARE * group.total) for group in blocks.groups],
            max_in_flight=engine.launch_depth,
            returns_states=engine.follower is not None,
            pools=pooler is not None,
            whole_prompts=pooler is not None and pooler.whole,
        ),
        chunking=Chunking(_step_seconds(config), engine.rates.prompt_tokens_per_second),
        readiness=preparation,
        fit=fit,
        speculation=_speculation(config.engine, engine, blocks, fit) if name == "decode" else None,
    )


def _speculation(
    engine_config: EngineConfig, engine: LoadedEngine, blocks: BlockManager, fit: StepFit
) -> Speculation | None:
    """Makes the speculation of `engine`; None without a proposer."""
    who = proposing(engine_config)
    if who == "none":
        return None
    answers = engine_config.speculative_answers
    earlier = EarlierAnswers(answers) if answers else None
    proposer = NGramProposer(earlier) if who == "ngram" else EngineProposer()
    most = engine_config.speculative_tokens or MAX_DRAFT_TOKENS[who]
    if not engine_config.speculative_tokens and engine.tree and engine.backend.device.type == "cpu":
        most = MAX_CPU_DRAFT_TOKENS
    controller = DraftController(fit, most, proposer.in_engine, engine.tree)
    return Speculation(blocks, proposer, most, controller, stores=who == "eagle")


def _step_seconds(config: WorkerConfig) -> float:
    return config.engine.step_ms / 1000


def step_costs(config: WorkerConfig, engine: LoadedEngine) -> StepCosts:
    step_seconds = _step_seconds(config)
    return structs.replace(
        engine.costs,
        most_tokens=engine.step_tokens,
        shorter=SHORTER_PROMPTS_SHARE,
        target=step_seconds,
    )
