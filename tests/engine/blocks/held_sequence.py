"""A sequence as the scheduler keeps it, for tests of the block manager."""

from engine.blocks.manager import Chains, Tables

SOUND: frozenset[int] = frozenset()
"""What is wrong with KV that is as it should be."""


class HeldSequence:
    """The tables of a sequence, and how far they are computed."""

    def __init__(self, tokens: list[int], texts: list[int], chains: Chains) -> None:
        self.tokens, self.chains = tokens, chains
        self.texts = texts  # of each token the number of the text up to there: see `TextNumbers`
        self.tables: Tables = ()
        self.known: list[int] = []
        self.planned = 0  # tokens whose KV is there once the planned step has run
        self.start = 0  # where the planned step, or else the last one, begins to compute
        self.since = 0  # the oldest step of what it is computed from
        self.step = 0  # that computed last
        self.breaks: frozenset[int] = frozenset()  # what is wrong with the KV that its planned step stores
        self.seen = 0  # the first query that is still to come, or that of the planned step
        self.register_at = 0
        self.landing = self.forked = self.preempted = False
