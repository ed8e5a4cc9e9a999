"""One rank that tries its collectives: `comm_process.py RANK SIZE cpu|cuda FOLDER`.

It saves in FOLDER/RANK.pt what it gave and got; on a GPU `replayed` are sums by a CUDA graph.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor

from baton.engine.collectives.comm import Shard
from baton.engine.collectives.gloo_comm import GlooComm
from baton.engine.collectives.nccl_comm import NcclComm
from baton.engine.layout.device import use_device
from baton.engine.replay.graphed_model import CudaCapture

SIZES = (1, 7, 4096, 100_003)  # NCCL chooses its algorithm by them


def main() -> None:
    rank, size, kind, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
    torch.set_num_threads(1)
    device = torch.device("cpu") if kind == "cpu" else torch.device(kind, rank)
    use_device(device)
    shard = Shard(rank, size)
    comm: GlooComm | NcclComm
    if kind == "cpu":
        comm = GlooComm(folder, shard, timeout_s=120.0)
    else:
        comm = NcclComm(folder, shard, 120.0, device)
    generator = torch.Generator().manual_seed(rank)
    parts = [torch.randn(n, generator=generator).to(device) for n in SIZES]
    columns = torch.randn(3, 2 + rank, generator=generator).to(device)
    told = torch.randint(1 << 40, (5,), generator=generator).to(device)
    found: dict[str, Tensor | list[Tensor]] = {
        "parts": parts,
        "sums": [comm.all_reduce(part.clone()) for part in parts],
        "replayed": [replayed(comm, part) for part in parts],
        "columns": columns,
        "gathered": comm.gather(columns, [2, 3]),
        "told": told,
        "heard": comm.broadcast(told.clone()),
    }
    torch.save(
        {k: [t.cpu() for t in v] if isinstance(v, list) else v.cpu() for k, v in found.items()},
        folder / f"{rank}.pt",
    )


def replayed(comm: GlooComm | NcclComm, part: Tensor) -> Tensor:
    """The sum by a captured collective, of inputs that came after the capture."""
    if part.device.type == "cpu":
        return comm.all_reduce(part.clone())
    inputs = torch.zeros_like(part)
    with torch.cuda.stream(torch.cuda.Stream(part.device)):
        replay, result = CudaCapture()(lambda: comm.all_reduce(inputs.clone()))
        inputs.copy_(part)
        replay()
        torch.cuda.synchronize(part.device)
    return result


if __name__ == "__main__":
    main()
