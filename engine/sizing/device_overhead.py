"""The GPU memory that is taken beside an engine's tensors. A pure function of numbers.

On an H200 (torch 2.11, CUDA 13) a context with torch's code took 527 MiB, and all that lay beside
torch 775 MiB once an engine with 56 layers had started; the other numbers are what other engines
and NVIDIA report. The log compares the plan with what is used, once an engine has started.
"""

from dataclasses import dataclass

from baton.engine.layout.batch_sizes import batch_sizes, draft_sizes, window_sizes
from baton.engine.settings.choices import windows_up_to

_MIB = 1 << 20
_CONTEXT = 600 * _MIB
"""CUDA's context with the code of torch, cuBLAS and Triton."""
_WORKSPACE = 32 * _MIB
"""cuBLAS's on Hopper. Torch allocates one for each thread and stream that multiplies."""
_NODE = 16 << 10
"""An executable graph's kernel node; up to 64 KiB by older drivers."""
_NODES_A_LAYER = 12
_NCCL = 512 * _MIB
"""NCCL's channels and buffers of one rank."""
_PEER_CONTEXT = 500 * _MIB
"""The leader's context on another rank's GPU, whose pools it allocates."""
_TRANSFERS = 256 * _MIB
"""UCX's memory on the device, of all agents of a worker."""


@dataclass(frozen=True)
class DeviceOverhead:
    """Estimates of the bytes on a GPU that no tensor of ours takes, by what takes them.

    running: requests that decode at once. layers: of the model. window: tokens that a step verifies
    of a request. ranks: of the replica. drafts: the model's own layer drafts for windows.
    """

    running: int
    layers: int
    window: int
    ranks: int
    captures: bool = True  # decode steps are captured as graphs
    drafts: bool = False

    @property
    def total(self) -> int:
        return self.beside + self.workspaces

    @property
    def beside(self) -> int:
        """Bytes that torch does not allocate: of the context and of libraries."""
        return _CONTEXT + self.executables + self.collectives + self.transfers

    @property
    def workspaces(self) -> int:
        """Bytes of cuBLAS's workspaces: of the stream of steps on the thread of the start and on
        the engine's, and of each kind of capture."""
        captures = 1 + (self.window > 1) if self.captures else 0
        return (2 + captures) * _WORKSPACE

    @property
    def executables(self) -> int:
        """Bytes of executable graphs. A step that verifies tokens has a second, its commit; one
        depth of drafts runs one layer."""
        if not self.captures:
            return 0
        graphs = len(batch_sizes(self.running))
        graphs += sum(2 * len(window_sizes(self.running, w)) for w in windows_up_to(self.window))
        layers = graphs * self.layers
        if self.drafts and self.window > 1:
            layers += len(draft_sizes(self.running))
        return layers * _NODES_A_LAYER * _NODE

    @property
    def collectives(self) -> int:
        """Bytes of what the ranks of a replica say to each other with."""
        return _NCCL + _PEER_CONTEXT if self.ranks > 1 else 0

    @property
    def transfers(self) -> int:
        """Bytes of what state is sent and received with."""
        return _TRANSFERS
