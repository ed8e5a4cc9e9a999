"""The links of the trees of one step, and the path of each that is accepted.

Node i of a row is the token i places behind its newest one, node 0. Its links are bits: of the
nodes that it follows, and its own. So the nodes of a path lie in the order of their bits.
"""

import torch
from torch import Tensor

from baton.engine.memory.page_pool import PagePool
from baton.engine.settings.choices import MOST_NODES
from baton.engine.step.forward_batch import ForwardBatch


def chain_nodes(rows: int, size: int, device: torch.device) -> Tensor:
    """Return the links of rows whose tokens follow one another: [rows, size] int64."""
    order = torch.arange(size, device=device)
    return ((2 << order) - 1).expand(rows, size)


def with_padding(nodes: Tensor, counts: Tensor) -> Tensor:
    """Let the padding of each row follow its last draft, so that it ends that path and no other.

    nodes: [B, Q] int64; counts: [B] int64, drafts of each row
    """
    order = torch.arange(nodes.shape[1], device=nodes.device)
    last = nodes.gather(1, counts[:, None])
    padding = (2 << order) - (2 << counts)[:, None]
    return torch.where(order > counts[:, None], last | padding, nodes)


def depths_of(nodes: Tensor) -> Tensor:
    """Return how many nodes each of `nodes` follows, of the same shape."""
    bits = torch.arange(MOST_NODES, device=nodes.device)
    return ((nodes[..., None] >> bits) & 1).sum(dim=-1) - 1


def follow(
    nodes: Tensor, drafts: Tensor, real: Tensor, at: Tensor, token_ids: Tensor
) -> tuple[Tensor, Tensor]:
    """Return which rows have a draft behind the node `at` that is `token_ids`, and that node; of
    the others `at`. No two drafts behind one node are the same.

    nodes, real: [B, Q]; drafts: [B, Q - 1], as of `Begun`. at, token_ids: [B] int64
    """
    own = 1 << torch.arange(1, nodes.shape[1], device=nodes.device)
    behind = (nodes[:, 1:] ^ own) == nodes.gather(1, at[:, None])
    right = behind & real[:, 1:] & (drafts == token_ids[:, None])
    return right.any(dim=1), torch.where(right.any(dim=1), right.int().argmax(dim=1) + 1, at)


def keep_path(forward: ForwardBatch, pages: PagePool, path: Tensor) -> None:
    """Move what the nodes of each row's path have written to the places behind its newest token:
    KV, latents, and the inputs that the commit computes again.

    path: [B, Q] int64, the node that is to come to each place; itself where nothing moves
    """
    requests, size = path.shape
    first = torch.arange(requests, device=path.device)[:, None] * size
    source, place = (path + first).flatten(), torch.arange(requests * size, device=path.device)
    moves = source != place
    source, place = source[moves], place[moves]
    if not len(place):
        return
    at = forward.token_pages, forward.token_offsets
    old, new = (tuple(each[index] for each in at) for index in (source, place))
    for pool in (*pages.k, *pages.v, *pages.latents):
        pool[new] = pool[old]
    for kept in forward.kept:
        kept[place] = kept[source]
