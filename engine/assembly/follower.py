"""A rank of a replica other than the first: a process that runs its part of the leader's steps.

It never schedules and never samples. It ends when the leader does.
"""

import os
import signal
import sys
from dataclasses import replace
from multiprocessing.connection import Connection

import torch
from torch import Tensor

from baton.core.errors import BatonError, InvariantError
from baton.engine.assembly.loader import load_part
from baton.engine.collectives.comm import RankComm, meet
from baton.engine.collectives.commit_message import CommitMessage, PathMessage
from baton.engine.collectives.device_pools import opened_pools
from baton.engine.collectives.draft_message import DraftMessage
from baton.engine.collectives.rank_books import RankBooks
from baton.engine.collectives.rank_capacity import check_capacity
from baton.engine.collectives.rank_comm import rank_comm
from baton.engine.collectives.rank_device import device_name, rank_device
from baton.engine.collectives.rank_messages import (
    Begin,
    BooksWanted,
    CaptureSteps,
    Failed,
    HasRoom,
    Joined,
    Loaded,
    RankPools,
)
from baton.engine.collectives.shared_memory import SharedMemory
from baton.engine.collectives.shared_pools import mapped_pools
from baton.engine.collectives.step_message import StepMessage
from baton.engine.replay.graphed_model import GraphedModel
from baton.engine.step.forward_batch import ForwardBatch
from baton.engine.step.kept_inputs import kept_inputs, tree_nodes, windows
from baton.engine.step.model import Model
from baton.engine.step.tree_path import keep_path

Message = StepMessage | DraftMessage | PathMessage | CommitMessage | BooksWanted | CaptureSteps
"""A message of the leader to a rank that has its pools."""


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all ranks
    with Connection(int(sys.argv[1])) as leader:
        try:
            follow(leader)
        except (EOFError, ConnectionError):
            # The leader has left, possibly in the middle of a collective: NCCL's own end would wait
            # for it, and keep this rank's GPU from the worker that is started next.
            os._exit(0)
        except Exception as error:  # a model or a kernel may raise anything: the leader says so
            name = "" if isinstance(error, BatonError) else f"{type(error).__name__}: "
            leader.send(Failed(f"{name}{error}"))
            sys.exit(1)


def follow(leader: Connection) -> None:
    """Load this rank's part of the model and run steps. Raises EOFError when the leader has
    left.
    """
    begin: Begin = leader.recv()
    torch.set_num_threads(begin.threads)
    leader.send(Joined())
    limit_s = begin.config.rank_timeout_s
    memory = SharedMemory(begin.memory, begin.shard, os.getppid(), limit_s)
    os.close(begin.memory)
    comm = rank_comm(begin.config, begin.folder, begin.shard, memory)
    device = rank_device(begin.config, begin.shard.rank)
    model = load_part(replace(begin.config, device=str(device)), begin.shard, comm)
    leader.send(Loaded(model.weight_bytes, device_name(device)))
    run_steps(leader, model, comm, memory, leader.recv(), device)


def run_steps(
    leader: Connection,
    model: Model,
    comm: RankComm,
    memory: SharedMemory,
    pools: RankPools,
    device: torch.device,
) -> None:
    """Run the leader's steps in their order. Raises EOFError when the leader has left."""
    check_capacity(model.config, pools, device)
    leader.send(HasRoom())
    if device.type == "cpu":
        states, pages = mapped_pools(model.config, pools, leader)
    else:
        states, pages = opened_pools(model.config, pools, leader, device)
    shape = pools.table_rows, pools.table_width
    tables = torch.zeros(shape, dtype=torch.int32, device=device)
    kept = kept_inputs(model, pools.kept_tokens, device)
    nodes = tree_nodes(pools.kept_tokens, pools.trees)
    batch: ForwardBatch | None = None  # the last that ran
    hidden: Tensor | None = None  # which the last depth of drafts has given
    books = RankBooks()
    with torch.inference_mode():
        while True:
            message: Message = leader.recv()
            if isinstance(message, BooksWanted):
                leader.send(books.books())
            elif isinstance(message, CaptureSteps) and isinstance(model, GraphedModel):
                model.capture(states, pages, tables, windows(kept, message.window))
            elif isinstance(message, StepMessage):
                check_meetings(memory.meetings, message.met)
                batch = message.batch(model, tables, kept, comm, nodes)
                books.ran(batch)
                logits = model.forward(batch, states, pages)
                if not logits.shape[0]:
                    meet(comm, device)
            elif isinstance(message, DraftMessage):
                check_meetings(memory.meetings, message.met)
                drafting = message.batch(model, states, hidden, tables, comm)
                books.drafted(drafting)
                hidden = model.draft(drafting, states, pages).hidden
            elif isinstance(message, PathMessage) and batch is not None:
                books.moved(message.path)
                keep_path(batch, pages, message.path)
            elif isinstance(message, CommitMessage) and batch is not None:
                check_meetings(memory.meetings, message.met)
                accepted = message.accepted(comm, device)
                books.committed(accepted)
                model.commit(batch, states, accepted)
                meet(comm, device)
            else:
                raise InvariantError(
                    f"the leader sent {type(message).__name__}, not a step, its drafts or its "
                    "commit"
                )
            comm.check()


def check_meetings(ours: int, leader_s: int) -> None:
    """Raise InvariantError if this rank has met the others more or fewer times than the leader has:
    it would add its parts to those of other layers."""
    if ours != leader_s:
        raise InvariantError(
            f"it has met the others {ours} times before a step, and the leader {leader_s} times"
        )


if __name__ == "__main__":
    main()
