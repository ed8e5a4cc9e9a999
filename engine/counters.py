"""What the engine counts, from its start on. Plain sums; metrics read them."""

from dataclasses import dataclass


@dataclass
class Counters:
    snapshots_written: int = 0  # planned into a step
    snapshots_donated: int = 0  # taken over by the prefix cache
    snapshots_skipped: int = 0  # wanted, but no slot was free
    snapshots_evicted: int = 0
    pages_evicted: int = 0
    branch_points: int = 0  # admissions whose KV matched deeper than their state
    prompt_tokens: int = 0  # of admissions
    hit_tokens_state: int = 0  # compute hits
    hit_tokens_kv: int = 0  # how far KV alone would have gone
    adopted_tokens: int = 0  # of hand-offs that were taken in
    hit_tokens_transfer: int = 0  # those among them whose KV was here already
    preemptions: int = 0
    steps: int = 0
    schedule_seconds: float = 0.0  # host time spent on planning
