"""A rank of a replica other than the first: a process that runs its part of the leader's steps.

It never schedules and never samples. It ends when the leader does.
"""

import os
import signal
import sys
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle

import torch

from baton.core.errors import BatonError
from baton.engine.models.base import Model
from baton.engine.models.loader import load_part
from baton.engine.ranks.comm import Comm, meet
from baton.engine.ranks.gloo_comm import GlooComm
from baton.engine.ranks.rank_messages import Begin, Failed, Joined, Loaded, RankPools
from baton.engine.ranks.shared_memory import SharedMemory
from baton.engine.ranks.shared_pools import mapped_pools
from baton.engine.ranks.step_message import StepMessage


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all ranks
    with Connection(int(sys.argv[1])) as leader:
        try:
            follow(leader)
        except (EOFError, ConnectionError):
            return  # the leader has left
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
    comm = GlooComm(begin.folder, begin.shard, limit_s, memory)
    model = load_part(begin.config, begin.shard, comm)
    leader.send(Loaded(model.weight_bytes))
    run_steps(leader, model, comm, leader.recv())


def run_steps(leader: Connection, model: Model, comm: Comm, pools: RankPools) -> None:
    """Run the leader's steps in their order. Raises EOFError when the leader has left."""
    descriptors = recv_handle(leader), recv_handle(leader)
    states, pages = mapped_pools(model.config, pools, descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    tables = torch.zeros((pools.table_rows, pools.table_width), dtype=torch.int32)
    with torch.inference_mode():
        while True:
            step: StepMessage = leader.recv()
            batch = step.batch(model, tables)
            model.forward(batch, states, pages)
            if not len(batch.logit_tokens):
                meet(comm)
            comm.check()


if __name__ == "__main__":
    main()
