"""The places of a window that hold drafts. Where the host may look, a step computes no others."""

from dataclasses import replace

from torch import Tensor

from baton.engine.forward.verification import Begun, WindowPlan
from baton.engine.settings.choices import WINDOWS
from baton.engine.step.forward_batch import ForwardBatch, HostLengths


def used_window(
    forward: ForwardBatch, plan: WindowPlan, begun: Begun
) -> tuple[ForwardBatch, WindowPlan, Begun]:
    """Cut a step of decoding rows alone to the shortest window that holds the drafts of each; a
    step with prompts stays as it is. One without drafts becomes a plain step, which writes states
    itself, where each row writes one.

    It reads how many they are, so it is for a device whose memory the host reads at no cost.
    """
    window = forward.window
    if window is None or forward.decode_rows < forward.rows:
        return forward, plan, begun
    size = next(size for size in WINDOWS if size > int(begun.counts.max()))
    if size == window.tokens:
        return forward, plan, begun
    requests, rows = forward.decode_requests, forward.decode_requests * size

    def cut(column: Tensor) -> Tensor:
        """[requests * window.tokens] -> [requests * size], contiguous for native kernels"""
        return column.view(requests, window.tokens)[:, :size].reshape(rows).contiguous()

    host = forward.host
    started = host.has_initial[:: window.tokens]
    lengths = HostLengths(
        host.cu_seqlens[: rows + 1],
        host.prefix_lens[:rows],
        host.kv_lens[:rows],
        tuple(known for known in started for _ in range(size)),
    )
    shorter = replace(
        forward,
        token_ids=cut(forward.token_ids),
        positions=cut(forward.positions),
        cu_seqlens=forward.cu_seqlens[: rows + 1],
        kv_lens=cut(forward.kv_lens),
        table_rows=cut(forward.table_rows),
        token_pages=cut(forward.token_pages),
        token_offsets=cut(forward.token_offsets),
        logit_tokens=forward.logit_tokens[:rows],
        decode_rows=rows,
        host=lengths,
        window=None if _is_plain(size, plan, begun) else replace(window, tokens=size),
    )
    places = replace(plan, drafts=plan.drafts[:, : size - 1], draws=plan.draws[: size - 1])
    return (
        shorter,
        places,
        replace(
            begun,
            drafts=begun.drafts[:, : size - 1],
            real=begun.real[:, :size],
            nodes=None if begun.nodes is None else begun.nodes[:, :size],
        ),
    )


def _is_plain(size: int, plan: WindowPlan, begun: Begun) -> bool:
    """Return true if rows have one token, no row's request has ended, and none may take a snapshot
    beside its slot.
    """
    return size == 1 and bool(begun.alive.all()) and not plan.track_slots.any()
