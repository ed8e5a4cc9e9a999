"""The explanation of a request as lines of text."""

from collections.abc import Iterator, Sequence

from baton.deploy.messages.json_object import JsonObject
from baton.deploy.terminal.timings_line import first_token, second_token

_PARTS = {
    "router_queue_us": "the queue at the router",
    "prefill_queue_us": "waiting at the worker that computed the prompt, fetches included",
    "prefill_us": "computing the prompt",
    "delivery_us": "delivery from the rank to the client",
    "network_us": "messages between processes, and attempts before the last",
}
_COLUMNS = ("", "queued", "state", "us/token", "ms left", "full", "link ms", "cost", "")


def explanation_lines(found: JsonObject, most: int | None) -> Iterator[str]:
    """Yield the lines for what `GET /explain/{id}` says. most: candidates of a role; None: all."""
    yield from _head(found)
    yield from _prompt(found)
    for attempt in found["attempts"]:
        yield ""
        yield from _attempt(attempt, most)
    if found.get("same_name"):
        yield ""
        yield f"others of this name: {', '.join(found['same_name'])}"


def _head(found: JsonObject) -> Iterator[str]:
    outcome = f": {found['outcome']}" if found["outcome"] else ""
    ago = f", arrived {found['age_s']:.1f} s ago" if "age_s" in found else ""
    yield f"request {found['request_id']}, {found['router']}, {found['status']}{outcome}{ago}"
    yield f"{found['prompt_tokens']} prompt tokens, {found['output_tokens']} written"
    timings = found["timings"]
    if timings is None or not timings["ttft_us"]:
        return
    yield first_token(timings)
    most = max(_PARTS, key=lambda part: timings[part])
    share = timings[most] / timings["ttft_us"]
    yield f"  most of it, {share:.0%}: {_PARTS[most]}"
    if found["output_tokens"] > 1 and timings["first_decode_step_us"]:
        yield second_token(timings)


def _prompt(found: JsonObject) -> Iterator[str]:
    """Say where KV and state came from, and what was lost before."""
    computed = found["computed"]
    if computed is not None:
        yield from _computed(computed)
    for lost in found["lost_states"]:
        ago = lost["before_placement_s"]
        when = f"{ago:.1f} s before" if ago >= 0 else f"{-ago:.1f} s after"
        yield (
            f"lost      {lost['worker']} had the state after {lost['tokens']} tokens: "
            f"{lost['how']} {when} the placement"
        )


def _computed(computed: JsonObject) -> Iterator[str]:
    by, state, kv = computed["by"], computed["cached_state_tokens"], computed["cached_kv_tokens"]
    if state is None:
        yield f"prompt    computed by {by}, which did not say what it had cached"
    else:
        had = f"had the state after {state} tokens" if state else "had no state of it"
        if host := computed.get("host_tokens"):
            had += f" ({host} of them from its host's memory)"
        if file := computed.get("file_tokens"):
            had += f" ({file} of them from files)"
        more = kv - state
        again = f", and the KV of {more} more: no use without a state there" if more > 0 else ""
        yield f"prompt    {by} {had}{again}; it computed {computed['computed_tokens']} tokens"
    fetch = computed["fetch"]
    if fetch is not None:
        yield (
            f"fetch     state after {fetch['tokens']} tokens from {fetch['from']}: "
            f"{_FETCHES.get(fetch['outcome'], fetch['outcome'])}, {fetch['ms']:.1f} ms"
        )
    if computed["rank_kv_tokens"] is not None:
        sent, kept = computed["sent_kv_tokens"], computed["rank_kv_tokens"]
        yield f"hand-off  the state and the KV of {sent} tokens; the rank had the KV of {kept}"
    for why in computed["failed"]:
        yield f"failed    {why}"


_FETCHES = {
    "fetched": "it came",
    "here": "not needed, it was there",
    "computed": "not fetched, computing was sooner",
    "absent": "it was gone there",
    "no_room": "no room for it",
    "failed": "failed, see the worker's log",
}


def _attempt(attempt: JsonObject, most: int | None) -> Iterator[str]:
    prefill, decode, here = attempt["prefill"], attempt["decode"], attempt["prefill_here"]
    why = f" ({attempt['why']})" if attempt["why"] else ""
    over = "" if attempt["ended_ms"] is None else f", after {attempt['ended_ms']:.1f} ms"
    yield (
        f"attempt {attempt['attempt']}: placed {attempt['placed_ms']:.1f} ms after arrival by "
        f"{attempt['policy']}; {attempt['end']}{over}{why}"
    )
    fallbacks = f"; then {', '.join(prefill['fallbacks'])}" if prefill["fallbacks"] else ""
    yield f"  prefill {prefill['worker']}: {prefill['reason']}{fallbacks}"
    yield f"  decode  {decode['worker']}: {decode['reason']}"
    place = decode["worker"] if here["chosen"] else prefill["worker"]
    yield f"  computed on {place}: {here['why']}{_times(here)}"
    if attempt["state_at"] is not None:
        at = attempt["state_at"]
        yield f"  deepest state of a rank: {at['tokens']} tokens on {at['worker']}"
    if attempt["junctions"]:
        shared = ", ".join(map(str, attempt["junctions"]))
        yield f"  states to keep for prompts that go another way: after {shared} tokens"
    yield from _table(prefill, most)
    yield from _table(decode, most)


def _times(here: JsonObject) -> str:
    if here["prefill_ms"] is None:
        return ""
    parts = [
        f"{here['prefill_ms']:.1f} ms there, {here['rank_ms']:.1f} ms on the rank",
        f"prompts behind it would gain {here['behind_ms']:.1f} ms",
        f"{here['answers']} answers on the rank lose {here['answers_ms']:.1f} ms",
        f"less a margin, {here['saved_ms']:.1f} ms saved if the rank computes it",
        f"most tokens there {here['threshold_tokens']}",
    ]
    return f" ({'; '.join(parts)})"


def _table(choice: JsonObject, most: int | None) -> Iterator[str]:
    """Yield one role's candidates in columns, best first, the chosen one marked."""
    every = sorted(choice["candidates"], key=lambda each: _order(each, choice["worker"]))
    shown = every if most is None else every[:most]
    cells = [_row(each, choice["worker"]) for each in shown]
    told = [at for at in range(len(_COLUMNS)) if any(row[at] != "-" for row in cells)]
    rows = [[row[at] for at in told] for row in (_COLUMNS, *cells)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *numbers, note in rows:
        right = [cell.rjust(width) for cell, width in zip(numbers, widths[1:], strict=False)]
        yield f"    {name.ljust(widths[0])}  {'  '.join(right)}  {note}".rstrip()
    if len(every) > len(shown):
        yield f"    and {len(every) - len(shown)} more (--all)"


def _order(candidate: JsonObject, chosen: str) -> tuple[bool, bool, float]:
    cost = candidate["cost"]
    if cost is None:
        cost = candidate["fullness"]
    return candidate["worker"] != chosen, candidate["excluded"] is not None, cost


def _row(candidate: JsonObject, chosen: str) -> Sequence[str]:
    mark = "*" if candidate["worker"] == chosen else " "
    to_come = "+" if candidate["state_to_come"] else ""
    parts = candidate["parts"]
    said = (
        " + ".join(f"{name} {value:g}" for name, value in parts.items()) if len(parts) > 1 else ""
    )
    return (
        f"{mark} {candidate['worker']}",
        _cell(candidate.get("queued_tokens")),
        f"{candidate['state_tokens']}{to_come}",
        _cell(candidate.get("prompt_token_us") or None),
        _cell(candidate.get("compute_ms")),
        f"{candidate['fullness']:.2f}",
        _cell(candidate["link_extra_ms"]),
        _cell(candidate["cost"]),
        candidate["excluded"] or (f"= {said}" if said else ""),
    )


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, int) else f"{value:.10g}"
