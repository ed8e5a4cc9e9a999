"""One tensor-parallel rank as a process over gloo: `rank_process.py RANK SIZE CASES GROUP OUT`.

CASES is a JSON list of [folder, prompt, answer]; rank 0 saves the logits of each in OUT.
"""

import json
import sys
from pathlib import Path

import torch
from rank_models import say

from baton.engine.collectives.comm import Shard
from baton.engine.collectives.gloo_comm import GlooComm


def main() -> None:
    rank, size = int(sys.argv[1]), int(sys.argv[2])
    cases, group, out = map(Path, sys.argv[3:6])
    torch.set_num_threads(1)
    shard = Shard(rank, size)
    comm = GlooComm(group, shard, timeout_s=120.0)
    said = [say(Path(f), p, a, shard, comm) for f, p, a in json.loads(cases.read_text())]
    if rank == 0:
        torch.save(said, out)


if __name__ == "__main__":
    main()
