from baton.proto import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FetchPrefix(_message.Message):
    __slots__ = ("hello", "token_ids", "ticket_id", "generation", "kv_from", "channel", "cache_salt")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    KV_FROM_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    hello: _common_pb2.Hello
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    ticket_id: int
    generation: int
    kv_from: int
    channel: str
    cache_salt: bytes
    def __init__(self, hello: _Optional[_Union[_common_pb2.Hello, _Mapping]] = ..., token_ids: _Optional[_Iterable[int]] = ..., ticket_id: _Optional[int] = ..., generation: _Optional[int] = ..., kv_from: _Optional[int] = ..., channel: _Optional[str] = ..., cache_salt: _Optional[bytes] = ...) -> None: ...

class FetchedPrefix(_message.Message):
    __slots__ = ("tokens", "segments", "bytes_state", "bytes_kv")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    BYTES_STATE_FIELD_NUMBER: _ClassVar[int]
    BYTES_KV_FIELD_NUMBER: _ClassVar[int]
    tokens: int
    segments: int
    bytes_state: int
    bytes_kv: int
    def __init__(self, tokens: _Optional[int] = ..., segments: _Optional[int] = ..., bytes_state: _Optional[int] = ..., bytes_kv: _Optional[int] = ...) -> None: ...

class LentPrefix(_message.Message):
    __slots__ = ("tokens", "slot", "pages", "endpoint", "segment_bytes", "checksums", "held")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    tokens: int
    slot: int
    pages: _containers.RepeatedScalarFieldContainer[int]
    endpoint: bytes
    segment_bytes: int
    checksums: _containers.RepeatedScalarFieldContainer[int]
    held: bool
    def __init__(self, tokens: _Optional[int] = ..., slot: _Optional[int] = ..., pages: _Optional[_Iterable[int]] = ..., endpoint: _Optional[bytes] = ..., segment_bytes: _Optional[int] = ..., checksums: _Optional[_Iterable[int]] = ..., held: _Optional[bool] = ...) -> None: ...

class StateOffer(_message.Message):
    __slots__ = ("token_ids", "cache_salt")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    cache_salt: bytes
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., cache_salt: _Optional[bytes] = ...) -> None: ...

class DecodeMessage(_message.Message):
    __slots__ = ("hello", "request", "cancel", "destination", "heartbeat", "offer", "several")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    OFFER_FIELD_NUMBER: _ClassVar[int]
    SEVERAL_FIELD_NUMBER: _ClassVar[int]
    hello: _common_pb2.Hello
    request: PrefillRequest
    cancel: CancelPrefill
    destination: Destination
    heartbeat: _common_pb2.Heartbeat
    offer: StateOffer
    several: DecodeMessages
    def __init__(self, hello: _Optional[_Union[_common_pb2.Hello, _Mapping]] = ..., request: _Optional[_Union[PrefillRequest, _Mapping]] = ..., cancel: _Optional[_Union[CancelPrefill, _Mapping]] = ..., destination: _Optional[_Union[Destination, _Mapping]] = ..., heartbeat: _Optional[_Union[_common_pb2.Heartbeat, _Mapping]] = ..., offer: _Optional[_Union[StateOffer, _Mapping]] = ..., several: _Optional[_Union[DecodeMessages, _Mapping]] = ...) -> None: ...

class DecodeMessages(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[DecodeMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[DecodeMessage, _Mapping]]] = ...) -> None: ...

class PrefillMessage(_message.Message):
    __slots__ = ("hello", "wanted", "first_token", "progress", "done", "failed", "drained", "heartbeat", "scores", "channel", "moving", "several")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    MOVING_FIELD_NUMBER: _ClassVar[int]
    SEVERAL_FIELD_NUMBER: _ClassVar[int]
    hello: _common_pb2.Hello
    wanted: DestinationWanted
    first_token: FirstToken
    progress: Progress
    done: Done
    failed: Failed
    drained: Drained
    heartbeat: _common_pb2.Heartbeat
    scores: PromptScores
    channel: ChannelChosen
    moving: Moving
    several: PrefillMessages
    def __init__(self, hello: _Optional[_Union[_common_pb2.Hello, _Mapping]] = ..., wanted: _Optional[_Union[DestinationWanted, _Mapping]] = ..., first_token: _Optional[_Union[FirstToken, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., failed: _Optional[_Union[Failed, _Mapping]] = ..., drained: _Optional[_Union[Drained, _Mapping]] = ..., heartbeat: _Optional[_Union[_common_pb2.Heartbeat, _Mapping]] = ..., scores: _Optional[_Union[PromptScores, _Mapping]] = ..., channel: _Optional[_Union[ChannelChosen, _Mapping]] = ..., moving: _Optional[_Union[Moving, _Mapping]] = ..., several: _Optional[_Union[PrefillMessages, _Mapping]] = ...) -> None: ...

class PrefillMessages(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[PrefillMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[PrefillMessage, _Mapping]]] = ...) -> None: ...

class PrefillRequest(_message.Message):
    __slots__ = ("request_id", "attempt", "prompt_ids", "sampling", "first_token", "state_at", "priority", "cache_salt", "junctions", "trace")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    STATE_AT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    JUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    prompt_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: _common_pb2.SamplingParams
    first_token: int
    state_at: _common_pb2.StateAt
    priority: int
    cache_salt: bytes
    junctions: _containers.RepeatedScalarFieldContainer[int]
    trace: _common_pb2.TraceContext
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., prompt_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ..., first_token: _Optional[int] = ..., state_at: _Optional[_Union[_common_pb2.StateAt, _Mapping]] = ..., priority: _Optional[int] = ..., cache_salt: _Optional[bytes] = ..., junctions: _Optional[_Iterable[int]] = ..., trace: _Optional[_Union[_common_pb2.TraceContext, _Mapping]] = ...) -> None: ...

class CancelPrefill(_message.Message):
    __slots__ = ("request_id", "attempt", "reason", "ticket_id", "generation")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    reason: str
    ticket_id: int
    generation: int
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., reason: _Optional[str] = ..., ticket_id: _Optional[int] = ..., generation: _Optional[int] = ...) -> None: ...

class DestinationWanted(_message.Message):
    __slots__ = ("request_id", "attempt", "tokens")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    tokens: int
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., tokens: _Optional[int] = ...) -> None: ...

class Destination(_message.Message):
    __slots__ = ("request_id", "attempt", "ticket_id", "generation", "slot", "pages", "kv_from", "prompt_hash", "sampling_hash")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    KV_FROM_FIELD_NUMBER: _ClassVar[int]
    PROMPT_HASH_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_HASH_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    ticket_id: int
    generation: int
    slot: int
    pages: _containers.RepeatedScalarFieldContainer[int]
    kv_from: int
    prompt_hash: int
    sampling_hash: int
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., ticket_id: _Optional[int] = ..., generation: _Optional[int] = ..., slot: _Optional[int] = ..., pages: _Optional[_Iterable[int]] = ..., kv_from: _Optional[int] = ..., prompt_hash: _Optional[int] = ..., sampling_hash: _Optional[int] = ...) -> None: ...

class FirstToken(_message.Message):
    __slots__ = ("request_id", "attempt", "token_id", "logprob", "cached_tokens", "prefill_queue_us", "prefill_us", "finished", "done", "cached_kv", "fetch", "cached_host", "cached_file")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    PREFILL_US_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    CACHED_KV_FIELD_NUMBER: _ClassVar[int]
    FETCH_FIELD_NUMBER: _ClassVar[int]
    CACHED_HOST_FIELD_NUMBER: _ClassVar[int]
    CACHED_FILE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    token_id: int
    logprob: _common_pb2.TokenLogprob
    cached_tokens: int
    prefill_queue_us: int
    prefill_us: int
    finished: _common_pb2.Finished
    done: Done
    cached_kv: int
    fetch: _common_pb2.StateFetch
    cached_host: int
    cached_file: int
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., token_id: _Optional[int] = ..., logprob: _Optional[_Union[_common_pb2.TokenLogprob, _Mapping]] = ..., cached_tokens: _Optional[int] = ..., prefill_queue_us: _Optional[int] = ..., prefill_us: _Optional[int] = ..., finished: _Optional[_Union[_common_pb2.Finished, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., cached_kv: _Optional[int] = ..., fetch: _Optional[_Union[_common_pb2.StateFetch, _Mapping]] = ..., cached_host: _Optional[int] = ..., cached_file: _Optional[int] = ...) -> None: ...

class PromptScores(_message.Message):
    __slots__ = ("request_id", "attempt", "logprobs")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    logprobs: _common_pb2.PromptLogprobs
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., logprobs: _Optional[_Union[_common_pb2.PromptLogprobs, _Mapping]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("request_id", "attempt", "computed_tokens")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    computed_tokens: int
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., computed_tokens: _Optional[int] = ...) -> None: ...

class NixlEndpoint(_message.Message):
    __slots__ = ("metadata", "agent", "pools")
    METADATA_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    metadata: bytes
    agent: str
    pools: _containers.RepeatedCompositeFieldContainer[MemorySpan]
    def __init__(self, metadata: _Optional[bytes] = ..., agent: _Optional[str] = ..., pools: _Optional[_Iterable[_Union[MemorySpan, _Mapping]]] = ...) -> None: ...

class MemorySpan(_message.Message):
    __slots__ = ("address", "block_bytes", "blocks", "device")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    address: int
    block_bytes: int
    blocks: int
    device: int
    def __init__(self, address: _Optional[int] = ..., block_bytes: _Optional[int] = ..., blocks: _Optional[int] = ..., device: _Optional[int] = ...) -> None: ...

class ChannelChosen(_message.Message):
    __slots__ = ("channel", "reason")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    channel: str
    reason: str
    def __init__(self, channel: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Moving(_message.Message):
    __slots__ = ("request_id", "attempt", "ticket_id", "generation", "under_way", "segments")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    UNDER_WAY_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    ticket_id: int
    generation: int
    under_way: bool
    segments: int
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., ticket_id: _Optional[int] = ..., generation: _Optional[int] = ..., under_way: _Optional[bool] = ..., segments: _Optional[int] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ("request_id", "attempt", "ticket_id", "generation", "segments", "bytes_state", "bytes_kv", "tail_us", "cached_state")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    BYTES_STATE_FIELD_NUMBER: _ClassVar[int]
    BYTES_KV_FIELD_NUMBER: _ClassVar[int]
    TAIL_US_FIELD_NUMBER: _ClassVar[int]
    CACHED_STATE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    ticket_id: int
    generation: int
    segments: int
    bytes_state: int
    bytes_kv: int
    tail_us: int
    cached_state: int
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., ticket_id: _Optional[int] = ..., generation: _Optional[int] = ..., segments: _Optional[int] = ..., bytes_state: _Optional[int] = ..., bytes_kv: _Optional[int] = ..., tail_us: _Optional[int] = ..., cached_state: _Optional[int] = ...) -> None: ...

class Failed(_message.Message):
    __slots__ = ("request_id", "attempt", "ticket_id", "generation", "error")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    ticket_id: int
    generation: int
    error: _common_pb2.Error
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., ticket_id: _Optional[int] = ..., generation: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...

class Drained(_message.Message):
    __slots__ = ("request_id", "attempt", "ticket_id", "generation")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    ticket_id: int
    generation: int
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., ticket_id: _Optional[int] = ..., generation: _Optional[int] = ...) -> None: ...
