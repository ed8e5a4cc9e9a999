"""Where one answer's time went, as people read it."""

from collections.abc import Mapping

_FIRST = ("router_queue", "prefill_queue", "prefill", "delivery", "network")
_SECOND = ("transfer", "decode_wait", "first_decode_step")


def first_token(timings: Mapping[str, int]) -> str:
    """`timings`: microseconds by name, as proto/common.proto has them."""
    return f"first token {_ms(timings['ttft_us'])} = {_sum(timings, _FIRST)}"


def second_token(timings: Mapping[str, int]) -> str:
    total = sum(timings[f"{part}_us"] for part in _SECOND)
    return f"second token {_ms(total)} = {_sum(timings, _SECOND)}"


def _sum(timings: Mapping[str, int], parts: tuple[str, ...]) -> str:
    return " + ".join(f"{part.replace('_', ' ')} {_ms(timings[f'{part}_us'])}" for part in parts)


def _ms(microseconds: int) -> str:
    """Two digits that matter below 10 ms, whole milliseconds above."""
    value = microseconds / 1000
    return f"{value:.2f} ms" if value < 10 else f"{value:.0f} ms"
