"""The memory plan in words, for a start-up message or a status page."""

from baton.engine.sizing.host_sizes import HostSizes
from baton.engine.sizing.plan import MemoryPlan
from baton.engine.sizing.readable import readable


def described(plan: MemoryPlan) -> dict[str, str]:
    """Describe the plan: the whole, then its parts, always in this order. What takes nothing is
    left out."""
    slot_bytes = plan.slot_layout.slot_bytes
    page_bytes = plan.page_layout.page_bytes
    staging = plan.config.staging_bytes
    beside = "" if plan.counts_overhead else ", beside the budget"
    parts = {
        **_step_parts(plan),
        "GPU libraries": plan.overhead_bytes,
        "shared texts": plan.texts_bytes,
        "transfer buffers": staging,
    }
    told = {name: f"up to {readable(nbytes)}" for name, nbytes in parts.items() if nbytes}
    if plan.overhead_bytes:
        told["GPU libraries"] += beside
    return {
        "budget": readable(plan.budget_bytes),
        "weights": readable(plan.weight_bytes),
        **told,
        "request tables": f"{plan.tables.rows} rows = {readable(plan.tables.nbytes)}",
        "state slots": (
            f"{plan.slots} of {readable(slot_bytes)} = {readable(plan.slots * slot_bytes)} "
            f"(1 padding, {plan.live_slots} live, {plan.track_slots} track, "
            f"{plan.ticket_slots} tickets, {plan.quarantine_slots} quarantine, "
            f"{plan.snapshot_slots} cached snapshots)"
        ),
        "pages": f"{plan.pages} of {readable(page_bytes)} = {readable(plan.pages * page_bytes)}",
        "tokens in pages": f"{(plan.pages - 1) * plan.config.page_size:,}",
        "longest sequence": f"{plan.max_model_len:,} tokens",
        **_host_parts(plan),
    }


def _host_parts(plan: MemoryPlan) -> dict[str, str]:
    """Describe the host's tier."""
    sizes = HostSizes(plan)
    parts = {
        "host snapshots": (sizes.slots, sizes.slot_bytes),
        "host pages": (sizes.pages, sizes.page_bytes),
    }
    return {
        name: f"{count} of {readable(each)} = {readable(count * each)}, beside the budget"
        for name, (count, each) in parts.items()
        if sizes and each
    }


def _step_parts(plan: MemoryPlan) -> dict[str, int]:
    """Return the bytes of the largest step, by what takes them."""
    step = plan.step
    return {
        "activations": step.activations,
        "logits": step.logits,
        "parts of attention": step.attention,
        "expanded latents": step.latents + plan.gathered_bytes,
        "graphs": step.graphs,
        "inputs of verified tokens": step.kept,
        "links of trees": step.links,
    }
