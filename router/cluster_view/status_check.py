"""Checks of what a worker says of itself, so that its word breaks nothing of a router."""

import json
from collections.abc import Iterable
from typing import NoReturn

from baton.core.errors import RequestError
from baton.proto.worker_pb2 import WorkerStatus
from baton.router.cluster_view.contexts import LEAST_CONTEXT

_MOST_BYTES = 4 << 20
_MOST_SETTING = 4096  # characters
_MOST_COUNT = 1 << 40  # of slots and pages with one owner, and of hand-offs
_MOST_REAL = 1e18
_MOST_LENGTHS = 1024  # tokens that a row of a step gives an answer
_INTEGERS = ("chunked_prefill_size", "mamba_checkpoint_grid")  # settings that a router reads
_RATIO = "mamba_full_memory_ratio"  # a setting that `baton status` writes


def check_status(status: WorkerStatus) -> None:
    """Raise RequestError, which says what is wrong, for a status that no worker can have."""
    for name, number, most in (  # far beyond what a worker can have
        ("running", status.running, 1 << 20),
        ("waiting", status.waiting, 1 << 24),
        ("max_running", status.max_running, 1 << 20),
        ("max_model_len", status.max_model_len, 1 << 30),
        ("page_size", status.page_size, 1 << 20),
        ("beside_decode", status.beside_decode, 1 << 30),
        ("queued_tokens", status.queued_tokens, 1 << 40),
        ("state_bytes", status.state_bytes, 1 << 50),
        ("token_bytes", status.token_bytes, 1 << 50),
        ("lag_us", status.lag_us, 1 << 50),
    ):
        if number > most:
            _refuse(name, f"at most {most}", number)
    for name, real in (
        ("uptime_s", status.uptime_s),
        ("decode_step_us", status.decode_step_us),
        ("prompt_token_us", status.prompt_token_us),
        ("link_bytes_per_s", status.link_bytes_per_s),
    ):
        _check_real(name, real, _MOST_REAL)
    _check_real("memory_held", status.memory_held, 1.0)
    for name, share in status.shortages.items():
        _check_real(f"shortages[{name!r:.40}]", share, 1.0)
    for name, rate in status.slow_links.items():
        _check_real(f"slow_links[{name!r:.40}]", rate, _MOST_REAL)
    host = status.host
    counts = [each.count for pool in (status.slots, status.pages, host.slots, host.pages)
              for each in pool]  # fmt: skip
    _check_counts("slots and pages", counts)
    files = status.files
    _check_counts("files", [files.files, files.writing, files.reading])
    _check_counts("bytes of files", [files.bytes, files.most_bytes], 1 << 60)
    _check_counts("handoffs", status.handoffs.values())
    totals = status.totals
    _check_counts("totals", [totals.preemptions, totals.drafts_proposed, totals.uncached_tokens,
                             totals.adopted_tokens, totals.host_hit_tokens, totals.file_hit_tokens,
                             *totals.accepted_lengths], 1 << 60)  # fmt: skip
    if len(totals.accepted_lengths) > _MOST_LENGTHS:
        expected = f"at most {_MOST_LENGTHS} accepted lengths"
        _refuse("totals", expected, len(totals.accepted_lengths))
    if 0 < status.max_model_len < LEAST_CONTEXT:  # 0: not known yet
        _refuse("max_model_len", f"at least {LEAST_CONTEXT}", status.max_model_len)


def check_details(status: WorkerStatus) -> None:
    """Do as `check_status` for the part that a worker tells when it changes."""
    if status.ByteSize() > _MOST_BYTES:
        _refuse("status", f"at most {_MOST_BYTES} bytes", status.ByteSize())
    for name, text in status.settings.items():
        _check_setting(name, text)


def _check_real(name: str, value: float, most: float) -> None:
    if not 0 <= value <= most * (1 + 1e-9):  # no NaN is
        _refuse(name, f"a number from 0 to {most:g}", value)


def _check_counts(name: str, counts: Iterable[int], most: int = _MOST_COUNT) -> None:
    for count in counts:
        if not 0 <= count <= most:
            _refuse(name, f"counts from 0 to {most}", count)


def _check_setting(name: str, text: str) -> None:
    if len(text) > _MOST_SETTING:
        _refuse(f"settings[{name!r:.40}]", f"at most {_MOST_SETTING} characters", len(text))
    try:
        value = json.loads(text, parse_constant=_no_number)
        # As `/server_info` writes it: neither 1e999, which is read as infinite, nor half a
        # surrogate pair.
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        _refuse(f"settings[{name!r:.40}]", "JSON", text)
    if name in _INTEGERS and not (isinstance(value, int) and 0 <= value <= 1 << 30):
        _refuse(f"settings[{name!r:.40}]", "a whole number of tokens", text)
    if name == _RATIO and not (value is None or isinstance(value, int | float)):
        _refuse(f"settings[{name!r:.40}]", "a number or null", text)


def _no_number(name: str) -> NoReturn:
    raise ValueError(name)


def _refuse(what: str, expected: str, actual: object) -> NoReturn:
    raise RequestError(
        f"the worker says something of itself that cannot be: {what} is {actual!r:.80}; "
        f"expected {expected}",
        expected=expected,
        actual=f"{actual!r:.80}",
    )
