"""A process of a cluster as Ray knows it. Its import needs no Ray."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LifeEnd:
    """The end of one life of an actor, as its process has recorded it."""

    life: int  # how often Ray had restarted the actor before
    reason: str


@dataclass(frozen=True)
class ActorProcess:
    """A member's process as Ray's control store has it."""

    state: str  # PENDING_CREATION, DEPENDENCIES_UNREADY, ALIVE, RESTARTING or DEAD
    pid: int  # 0 before there is one
    restarts: int
    host: str  # its node's address, while it is restarted that of its last life; empty before one
    node_id: str  # of that node; empty before one
    host_lost: bool  # the node is gone
