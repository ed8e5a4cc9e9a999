from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_CODE_UNSPECIFIED: _ClassVar[ErrorCode]
    INVALID_REQUEST: _ClassVar[ErrorCode]
    NOT_FOUND: _ClassVar[ErrorCode]
    TOO_LARGE: _ClassVar[ErrorCode]
    OVERLOADED: _ClassVar[ErrorCode]
    CANCELLED: _ClassVar[ErrorCode]
    DEADLINE_EXCEEDED: _ClassVar[ErrorCode]
    UNAVAILABLE: _ClassVar[ErrorCode]
    INCOMPATIBLE: _ClassVar[ErrorCode]
    DATA_LOSS: _ClassVar[ErrorCode]
    INTERNAL: _ClassVar[ErrorCode]
    UNAUTHENTICATED: _ClassVar[ErrorCode]
    PERMISSION_DENIED: _ClassVar[ErrorCode]
    CONFLICT: _ClassVar[ErrorCode]

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    PREFILL: _ClassVar[Role]
    DECODE: _ClassVar[Role]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    STOP: _ClassVar[FinishReason]
    LENGTH: _ClassVar[FinishReason]
    ABORT: _ClassVar[FinishReason]
    ERROR: _ClassVar[FinishReason]
ERROR_CODE_UNSPECIFIED: ErrorCode
INVALID_REQUEST: ErrorCode
NOT_FOUND: ErrorCode
TOO_LARGE: ErrorCode
OVERLOADED: ErrorCode
CANCELLED: ErrorCode
DEADLINE_EXCEEDED: ErrorCode
UNAVAILABLE: ErrorCode
INCOMPATIBLE: ErrorCode
DATA_LOSS: ErrorCode
INTERNAL: ErrorCode
UNAUTHENTICATED: ErrorCode
PERMISSION_DENIED: ErrorCode
CONFLICT: ErrorCode
ROLE_UNSPECIFIED: Role
PREFILL: Role
DECODE: Role
FINISH_REASON_UNSPECIFIED: FinishReason
STOP: FinishReason
LENGTH: FinishReason
ABORT: FinishReason
ERROR: FinishReason

class Error(_message.Message):
    __slots__ = ("code", "retryable", "origin", "message", "expected", "actual")
    CODE_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    ACTUAL_FIELD_NUMBER: _ClassVar[int]
    code: ErrorCode
    retryable: bool
    origin: str
    message: str
    expected: str
    actual: str
    def __init__(self, code: _Optional[_Union[ErrorCode, str]] = ..., retryable: _Optional[bool] = ..., origin: _Optional[str] = ..., message: _Optional[str] = ..., expected: _Optional[str] = ..., actual: _Optional[str] = ...) -> None: ...

class WorkerIdentity(_message.Message):
    __slots__ = ("worker_id", "incarnation", "address", "role", "group", "rank")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    incarnation: int
    address: str
    role: Role
    group: int
    rank: int
    def __init__(self, worker_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., address: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., group: _Optional[int] = ..., rank: _Optional[int] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol_major", "protocol_minor", "worker", "fingerprint", "router_id", "channels", "process")
    class FingerprintEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PROTOCOL_MAJOR_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_MINOR_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    ROUTER_ID_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    protocol_major: int
    protocol_minor: int
    worker: WorkerIdentity
    fingerprint: _containers.ScalarMap[str, str]
    router_id: str
    channels: _containers.RepeatedCompositeFieldContainer[ChannelOffer]
    process: HostProcess
    def __init__(self, protocol_major: _Optional[int] = ..., protocol_minor: _Optional[int] = ..., worker: _Optional[_Union[WorkerIdentity, _Mapping]] = ..., fingerprint: _Optional[_Mapping[str, str]] = ..., router_id: _Optional[str] = ..., channels: _Optional[_Iterable[_Union[ChannelOffer, _Mapping]]] = ..., process: _Optional[_Union[HostProcess, _Mapping]] = ...) -> None: ...

class ChannelOffer(_message.Message):
    __slots__ = ("channel", "endpoint")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    channel: str
    endpoint: bytes
    def __init__(self, channel: _Optional[str] = ..., endpoint: _Optional[bytes] = ...) -> None: ...

class HostProcess(_message.Message):
    __slots__ = ("boot_id", "pid_namespace", "pid", "started", "maps_peers", "maps_namespaces")
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    PID_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    MAPS_PEERS_FIELD_NUMBER: _ClassVar[int]
    MAPS_NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    boot_id: str
    pid_namespace: str
    pid: int
    started: int
    maps_peers: bool
    maps_namespaces: bool
    def __init__(self, boot_id: _Optional[str] = ..., pid_namespace: _Optional[str] = ..., pid: _Optional[int] = ..., started: _Optional[int] = ..., maps_peers: _Optional[bool] = ..., maps_namespaces: _Optional[bool] = ...) -> None: ...

class StateAt(_message.Message):
    __slots__ = ("worker", "tokens")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    worker: WorkerIdentity
    tokens: int
    def __init__(self, worker: _Optional[_Union[WorkerIdentity, _Mapping]] = ..., tokens: _Optional[int] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("sequence",)
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    def __init__(self, sequence: _Optional[int] = ...) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed", "stop_token_ids", "stop", "include_stop", "ignore_eos", "min_tokens", "max_tokens", "logprobs", "prompt_logprobs_start", "prompt_logprobs", "logprob_token_ids", "grammar", "logit_bias", "bad_words", "allowed_token_ids", "stop_regex")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_STOP_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_START_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    STOP_REGEX_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    stop: _containers.RepeatedScalarFieldContainer[str]
    include_stop: bool
    ignore_eos: bool
    min_tokens: int
    max_tokens: int
    logprobs: int
    prompt_logprobs_start: int
    prompt_logprobs: int
    logprob_token_ids: _containers.RepeatedScalarFieldContainer[int]
    grammar: Grammar
    logit_bias: _containers.ScalarMap[int, float]
    bad_words: _containers.RepeatedScalarFieldContainer[str]
    allowed_token_ids: _containers.RepeatedScalarFieldContainer[int]
    stop_regex: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., seed: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., stop: _Optional[_Iterable[str]] = ..., include_stop: _Optional[bool] = ..., ignore_eos: _Optional[bool] = ..., min_tokens: _Optional[int] = ..., max_tokens: _Optional[int] = ..., logprobs: _Optional[int] = ..., prompt_logprobs_start: _Optional[int] = ..., prompt_logprobs: _Optional[int] = ..., logprob_token_ids: _Optional[_Iterable[int]] = ..., grammar: _Optional[_Union[Grammar, _Mapping]] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., bad_words: _Optional[_Iterable[str]] = ..., allowed_token_ids: _Optional[_Iterable[int]] = ..., stop_regex: _Optional[_Iterable[str]] = ...) -> None: ...

class Grammar(_message.Message):
    __slots__ = ("kind", "text")
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    kind: str
    text: str
    def __init__(self, kind: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class TokenLogprob(_message.Message):
    __slots__ = ("token_id", "logprob", "top_ids", "top_logprobs", "asked_logprobs")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ASKED_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    logprob: float
    top_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    asked_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, token_id: _Optional[int] = ..., logprob: _Optional[float] = ..., top_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ..., asked_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class PromptLogprobs(_message.Message):
    __slots__ = ("start", "tokens")
    START_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    start: int
    tokens: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    def __init__(self, start: _Optional[int] = ..., tokens: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens", "cached_tokens", "drafts", "cached_host_tokens", "cached_file_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    CACHED_HOST_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_FILE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    drafts: DraftUsage
    cached_host_tokens: int
    cached_file_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., drafts: _Optional[_Union[DraftUsage, _Mapping]] = ..., cached_host_tokens: _Optional[int] = ..., cached_file_tokens: _Optional[int] = ...) -> None: ...

class DraftUsage(_message.Message):
    __slots__ = ("verify_steps", "by_proposer")
    VERIFY_STEPS_FIELD_NUMBER: _ClassVar[int]
    BY_PROPOSER_FIELD_NUMBER: _ClassVar[int]
    verify_steps: int
    by_proposer: _containers.RepeatedCompositeFieldContainer[DraftCount]
    def __init__(self, verify_steps: _Optional[int] = ..., by_proposer: _Optional[_Iterable[_Union[DraftCount, _Mapping]]] = ...) -> None: ...

class DraftCount(_message.Message):
    __slots__ = ("proposer", "proposed", "accepted")
    PROPOSER_FIELD_NUMBER: _ClassVar[int]
    PROPOSED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    proposer: str
    proposed: int
    accepted: int
    def __init__(self, proposer: _Optional[str] = ..., proposed: _Optional[int] = ..., accepted: _Optional[int] = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ("router_queue_us", "prefill_queue_us", "prefill_us", "delivery_us", "network_us", "transfer_us", "decode_wait_us", "first_decode_step_us", "ttft_us", "e2e_us", "prefill_to_decode_us")
    ROUTER_QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    PREFILL_QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    PREFILL_US_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_US_FIELD_NUMBER: _ClassVar[int]
    NETWORK_US_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_US_FIELD_NUMBER: _ClassVar[int]
    DECODE_WAIT_US_FIELD_NUMBER: _ClassVar[int]
    FIRST_DECODE_STEP_US_FIELD_NUMBER: _ClassVar[int]
    TTFT_US_FIELD_NUMBER: _ClassVar[int]
    E2E_US_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TO_DECODE_US_FIELD_NUMBER: _ClassVar[int]
    router_queue_us: int
    prefill_queue_us: int
    prefill_us: int
    delivery_us: int
    network_us: int
    transfer_us: int
    decode_wait_us: int
    first_decode_step_us: int
    ttft_us: int
    e2e_us: int
    prefill_to_decode_us: int
    def __init__(self, router_queue_us: _Optional[int] = ..., prefill_queue_us: _Optional[int] = ..., prefill_us: _Optional[int] = ..., delivery_us: _Optional[int] = ..., network_us: _Optional[int] = ..., transfer_us: _Optional[int] = ..., decode_wait_us: _Optional[int] = ..., first_decode_step_us: _Optional[int] = ..., ttft_us: _Optional[int] = ..., e2e_us: _Optional[int] = ..., prefill_to_decode_us: _Optional[int] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("reason", "stop_token_id", "stop_string", "cut_chars", "usage", "timings", "error", "state_tokens", "source", "synthetic_acceptance")
    REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    STOP_STRING_FIELD_NUMBER: _ClassVar[int]
    CUT_CHARS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    STATE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SYNTHETIC_ACCEPTANCE_FIELD_NUMBER: _ClassVar[int]
    reason: FinishReason
    stop_token_id: int
    stop_string: str
    cut_chars: int
    usage: Usage
    timings: Timings
    error: Error
    state_tokens: int
    source: PromptSource
    synthetic_acceptance: float
    def __init__(self, reason: _Optional[_Union[FinishReason, str]] = ..., stop_token_id: _Optional[int] = ..., stop_string: _Optional[str] = ..., cut_chars: _Optional[int] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., state_tokens: _Optional[int] = ..., source: _Optional[_Union[PromptSource, _Mapping]] = ..., synthetic_acceptance: _Optional[float] = ...) -> None: ...

class PromptSource(_message.Message):
    __slots__ = ("reader", "state_tokens", "kv_tokens", "rank_kv_tokens", "fetch", "failed", "host_tokens", "file_tokens")
    READER_FIELD_NUMBER: _ClassVar[int]
    STATE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KV_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RANK_KV_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FETCH_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    HOST_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FILE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    reader: str
    state_tokens: int
    kv_tokens: int
    rank_kv_tokens: int
    fetch: StateFetch
    failed: _containers.RepeatedScalarFieldContainer[str]
    host_tokens: int
    file_tokens: int
    def __init__(self, reader: _Optional[str] = ..., state_tokens: _Optional[int] = ..., kv_tokens: _Optional[int] = ..., rank_kv_tokens: _Optional[int] = ..., fetch: _Optional[_Union[StateFetch, _Mapping]] = ..., failed: _Optional[_Iterable[str]] = ..., host_tokens: _Optional[int] = ..., file_tokens: _Optional[int] = ...) -> None: ...

class StateFetch(_message.Message):
    __slots__ = ("source", "tokens", "outcome", "took_us")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    TOOK_US_FIELD_NUMBER: _ClassVar[int]
    source: str
    tokens: int
    outcome: str
    took_us: int
    def __init__(self, source: _Optional[str] = ..., tokens: _Optional[int] = ..., outcome: _Optional[str] = ..., took_us: _Optional[int] = ...) -> None: ...

class TraceContext(_message.Message):
    __slots__ = ("traceparent", "tracestate")
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    TRACESTATE_FIELD_NUMBER: _ClassVar[int]
    traceparent: str
    tracestate: str
    def __init__(self, traceparent: _Optional[str] = ..., tracestate: _Optional[str] = ...) -> None: ...
