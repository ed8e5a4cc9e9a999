"""One answer's timings as one line of text, in milliseconds."""

from collections.abc import Mapping

_WAITS = ("router_queue_us", "prefill_queue_us")
_SECOND = ("transfer_us", "decode_wait_us", "first_decode_step_us")


def first_token(timings: Mapping[str, int]) -> str:
    """Describe the time to the first token.

    timings: microseconds by name, as proto/common.proto has them.
    """
    waits = "+".join(_ms(timings[part]) for part in _WAITS)
    return (
        f"first token {_ms(timings['ttft_us'])} ms = queues {waits}, "
        f"prefill {_ms(timings['prefill_us'])}, delivery {_ms(timings['delivery_us'])}, "
        f"network {_ms(timings['network_us'])}"
    )


def second_token(timings: Mapping[str, int]) -> str:
    transfer, wait, step = (_ms(timings[part]) for part in _SECOND)
    total = _ms(sum(timings[part] for part in _SECOND))
    return f"second token {total} ms = transfer {transfer}, wait {wait}, step {step}"


def _ms(microseconds: int) -> str:
    """Format with one digit after the point below 100 ms, and none above."""
    value = microseconds / 1000
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"
