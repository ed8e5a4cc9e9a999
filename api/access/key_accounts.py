"""The accounts of API keys: the part of its caps that each has used. They survive changes of the
keys' file."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from baton.api.access.keys import Key
from baton.api.access.rate import MinuteRate
from baton.api.backend import GenerateRequest
from baton.api.errors import RETRY_AFTER_S
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError

RESERVED_TOKENS = 1024
"""The most output tokens that are reserved for an answer. Those beyond are counted as they come.
With a whole context reserved for each, few answers would be admitted, and most end early."""

RATE_LIMIT_HEADERS = tuple(
    f"x-ratelimit-{part}-{what}"
    for what in ("requests", "tokens")
    for part in ("limit", "remaining", "reset")
)
"""OpenAI's headers, which a reply has for the caps of its key."""

Count = Callable[[str, str], None]  # a key's name, and the cap that it reached


class Account:
    """The use of one key."""

    def __init__(self, key: Key, clock: Callable[[], float], parts: int) -> None:
        """parts: servers among which the key's caps are divided."""
        self._clock = clock
        self._parts = parts
        self.running = 0  # answers that have not ended
        self.requests: MinuteRate | None = None
        self.tokens: MinuteRate | None = None
        self.follow(key)

    def follow(self, key: Key) -> None:
        """Take the caps of the key as the file has it now."""
        self.key = key
        self.requests = self._rate(self.requests, key.requests_per_minute)
        self.tokens = self._rate(self.tokens, key.tokens_per_minute)

    def _rate(self, present: MinuteRate | None, per_minute: int | None) -> MinuteRate | None:
        if per_minute is None:
            return None
        if present is None:
            return MinuteRate(per_minute, self._clock, self._parts)
        if present.per_minute != per_minute:
            present.change(per_minute)
        return present


@dataclass
class _Answer:
    """The reserve of one answer."""

    account: Account
    prompt_tokens: int  # used with the first output token
    reserved: int
    begun: bool = False


@dataclass
class KeyCall:
    """One call of a client, whose answers it admits. Ends with `KeyAccounts.call`."""

    account: Account
    _accounts: "KeyAccounts"
    _answers: list[str] = field(default_factory=list)  # request ids

    @property
    def owner(self) -> str:
        return self.account.key.name

    def admit(self, requests: Sequence[GenerateRequest]) -> None:
        """Reserve what the answers to one prompt may use. Raises `ApiError` for what the key may
        not ask for (PERMISSION_DENIED, TOO_LARGE), or not now (OVERLOADED)."""
        self._accounts.admit(self.account, requests)
        self._answers += [request.request_id for request in requests]

    def begin(self) -> None:
        """Count the call as a request. Raises OVERLOADED beyond the key's rate."""
        self._accounts.begin(self.account)

    def headers(self) -> dict[str, str]:
        """Return OpenAI's `x-ratelimit-*` headers for the caps that the key has."""
        found = {}
        for name, rate in (("requests", self.account.requests), ("tokens", self.account.tokens)):
            if rate is not None:
                found[f"x-ratelimit-limit-{name}"] = str(rate.per_minute)
                found[f"x-ratelimit-remaining-{name}"] = str(rate.left)
                found[f"x-ratelimit-reset-{name}"] = f"{rate.full_s:.3f}s"
        return found

    def end(self) -> None:
        """Give back what was reserved and not used."""
        for request_id in self._answers:
            self._accounts.settle(request_id)


class KeyAccounts:
    """The accounts of all keys, by name: a key that is replaced under its name keeps its use."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        count: Count = lambda key, cap: None,
        parts: int = 1,
    ) -> None:
        """count: called for each refusal. parts: servers among which each key's caps are divided;
        they do not know of each other.
        """
        self._clock = clock
        self._parts = parts
        self.count_refusal = count
        self._accounts: dict[str, Account] = {}
        self._answers: dict[str, _Answer] = {}  # by request id

    @contextmanager
    def call(self, key: Key) -> Iterator[KeyCall]:
        """Open a call of a key. What it reserves is settled at the end."""
        call = KeyCall(self._account(key), self)
        try:
            yield call
        finally:
            call.end()

    def begin(self, account: Account) -> None:
        """Count a request. Raises OVERLOADED beyond the key's rate."""
        rate, name = account.requests, account.key.name
        if rate is None:
            return
        wait_s = rate.wait_s(1)
        if wait_s:
            raise self._refused(
                name,
                "requests_per_minute",
                ErrorCode.OVERLOADED,
                f"the API key {name!r} may send {rate.per_minute} requests a minute; send this one "
                "again later",
                f"at most {rate.per_minute} a minute",
                wait_s,
            )
        rate.use(1)

    def admit(self, account: Account, requests: Sequence[GenerateRequest]) -> None:
        """Do as `KeyCall.admit` says."""
        self._check_shape(account.key, requests)
        self._check_running(account, len(requests))
        outputs = [min(r.sampling.max_tokens, RESERVED_TOKENS) for r in requests]
        prompt = len(requests[0].prompt_ids)
        if account.tokens is not None:
            self._reserve(account.key.name, account.tokens, prompt, sum(outputs))
        for request, output in zip(requests, outputs, strict=True):
            self._answers[request.request_id] = _Answer(account, prompt, prompt + output)
            prompt = 0  # counts once, however many answers it has
        account.running += len(requests)

    def used(self, request_id: str, tokens: int) -> None:
        """Count output tokens of an answer."""
        answer = self._answers.get(request_id)
        if answer is None:
            return
        if not answer.begun:
            answer.begun = True
            tokens += answer.prompt_tokens
        from_reserve = min(tokens, answer.reserved)
        answer.reserved -= from_reserve
        if answer.account.tokens is not None and tokens > from_reserve:
            answer.account.tokens.use(tokens - from_reserve)

    def settle(self, request_id: str) -> None:
        """Give back what an answer has reserved and not used. Idempotent."""
        answer = self._answers.pop(request_id, None)
        if answer is None:
            return
        answer.account.running -= 1
        if answer.account.tokens is not None:
            answer.account.tokens.use(-answer.reserved)

    def _account(self, key: Key) -> Account:
        account = self._accounts.get(key.name)
        if account is None:
            account = self._accounts[key.name] = Account(key, self._clock, self._parts)
        elif account.key is not key:
            account.follow(key)
        return account

    def _check_shape(self, key: Key, requests: Sequence[GenerateRequest]) -> None:
        """Raise PERMISSION_DENIED for an `n` or a priority that the key may never have."""
        for param, given, most in (
            ("n", len(requests), key.max_n),
            ("priority", requests[0].priority, key.max_priority),
        ):
            if most is not None and given > most:
                raise self._refused(
                    key.name,
                    f"max_{param}",
                    ErrorCode.PERMISSION_DENIED,
                    f"{param} is {given}, but the API key {key.name!r} may have at most {most}",
                    f"at most {most}",
                    param=param,
                )

    def _check_running(self, account: Account, more: int) -> None:
        most, name = account.key.concurrent_requests, account.key.name
        if most is None:
            return
        part = -(-most // self._parts)
        # Alone, a request may ask for as many answers as the key may have: no other server has
        # a larger part.
        if account.running + more <= part or (account.running == 0 and more <= most):
            return
        later = account.running > 0 and more <= most
        raise self._refused(
            name,
            "concurrent_requests",
            ErrorCode.OVERLOADED if later else ErrorCode.PERMISSION_DENIED,
            f"the API key {name!r} may have {part} answers at once here, {account.running} are "
            f"under way and this request asks for {more}; "
            + ("send it again later" if later else "ask for fewer"),
            f"at most {part}",
            RETRY_AFTER_S if later else None,
        )

    def _reserve(self, name: str, rate: MinuteRate, prompt: int, output: int) -> None:
        if prompt > rate.per_minute:
            raise self._refused(
                name,
                "tokens_per_minute",
                ErrorCode.TOO_LARGE,
                f"the prompt has {prompt} tokens, but the API key {name!r} may use "
                f"{rate.per_minute} a minute; shorten the prompt",
                f"at most {rate.per_minute} tokens",
            )
        # An answer that may be longer than a minute's tokens needs them all, not more.
        wait_s = rate.wait_s(min(prompt + output, rate.per_minute))
        if wait_s:
            raise self._refused(
                name,
                "tokens_per_minute",
                ErrorCode.OVERLOADED,
                f"the API key {name!r} may use {rate.per_minute} tokens a minute and has "
                f"{rate.left} left; this request may use {prompt + output}: send it again later",
                f"at most {rate.per_minute} tokens a minute",
                wait_s,
            )
        rate.use(prompt + output)

    def _refused(
        self,
        key: str,
        cap: str,
        code: ErrorCode,
        message: str,
        expected: str,
        retry_after_s: float | None = None,
        param: str | None = None,
    ) -> ApiError:
        self.count_refusal(key, cap)
        return ApiError(code, message, expected=expected, retry_after_s=retry_after_s, param=param)
