from baton.proto import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NameRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RouterName(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class RouterMessage(_message.Message):
    __slots__ = ("hello", "start", "cancel", "heartbeat", "prefills", "recall", "starts")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    PREFILLS_FIELD_NUMBER: _ClassVar[int]
    RECALL_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    hello: _common_pb2.Hello
    start: StartRequest
    cancel: CancelRequest
    heartbeat: _common_pb2.Heartbeat
    prefills: Prefills
    recall: Recall
    starts: StartRequests
    def __init__(self, hello: _Optional[_Union[_common_pb2.Hello, _Mapping]] = ..., start: _Optional[_Union[StartRequest, _Mapping]] = ..., cancel: _Optional[_Union[CancelRequest, _Mapping]] = ..., heartbeat: _Optional[_Union[_common_pb2.Heartbeat, _Mapping]] = ..., prefills: _Optional[_Union[Prefills, _Mapping]] = ..., recall: _Optional[_Union[Recall, _Mapping]] = ..., starts: _Optional[_Union[StartRequests, _Mapping]] = ...) -> None: ...

class StartRequests(_message.Message):
    __slots__ = ("requests",)
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[StartRequest]
    def __init__(self, requests: _Optional[_Iterable[_Union[StartRequest, _Mapping]]] = ...) -> None: ...

class Recall(_message.Message):
    __slots__ = ("request_id", "attempt", "computed")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    computed: bool
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., computed: _Optional[bool] = ...) -> None: ...

class Recalled(_message.Message):
    __slots__ = ("request_id", "attempt", "returned")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RETURNED_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    returned: bool
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., returned: _Optional[bool] = ...) -> None: ...

class Prefills(_message.Message):
    __slots__ = ("workers",)
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[_common_pb2.WorkerIdentity]
    def __init__(self, workers: _Optional[_Iterable[_Union[_common_pb2.WorkerIdentity, _Mapping]]] = ...) -> None: ...

class StartRequest(_message.Message):
    __slots__ = ("request_id", "attempt", "client_id", "prompt_ids", "output_ids", "sampling", "prefills", "state_at", "priority", "cache_salt", "handle", "junctions", "prefill_here", "prediction_ids", "draft_scope", "trace")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    PREFILLS_FIELD_NUMBER: _ClassVar[int]
    STATE_AT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    JUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_HERE_FIELD_NUMBER: _ClassVar[int]
    PREDICTION_IDS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_SCOPE_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    client_id: str
    prompt_ids: _containers.RepeatedScalarFieldContainer[int]
    output_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: _common_pb2.SamplingParams
    prefills: _containers.RepeatedCompositeFieldContainer[_common_pb2.WorkerIdentity]
    state_at: _common_pb2.StateAt
    priority: int
    cache_salt: bytes
    handle: int
    junctions: _containers.RepeatedScalarFieldContainer[int]
    prefill_here: bool
    prediction_ids: _containers.RepeatedScalarFieldContainer[int]
    draft_scope: bytes
    trace: _common_pb2.TraceContext
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., client_id: _Optional[str] = ..., prompt_ids: _Optional[_Iterable[int]] = ..., output_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ..., prefills: _Optional[_Iterable[_Union[_common_pb2.WorkerIdentity, _Mapping]]] = ..., state_at: _Optional[_Union[_common_pb2.StateAt, _Mapping]] = ..., priority: _Optional[int] = ..., cache_salt: _Optional[bytes] = ..., handle: _Optional[int] = ..., junctions: _Optional[_Iterable[int]] = ..., prefill_here: _Optional[bool] = ..., prediction_ids: _Optional[_Iterable[int]] = ..., draft_scope: _Optional[bytes] = ..., trace: _Optional[_Union[_common_pb2.TraceContext, _Mapping]] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("request_id", "attempt", "reason")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    reason: str
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class RankMessage(_message.Message):
    __slots__ = ("hello", "requests", "heartbeat", "closing", "step", "recalled")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    CLOSING_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    RECALLED_FIELD_NUMBER: _ClassVar[int]
    hello: _common_pb2.Hello
    requests: _containers.RepeatedCompositeFieldContainer[RequestTokens]
    heartbeat: _common_pb2.Heartbeat
    closing: bool
    step: StepTokens
    recalled: _containers.RepeatedCompositeFieldContainer[Recalled]
    def __init__(self, hello: _Optional[_Union[_common_pb2.Hello, _Mapping]] = ..., requests: _Optional[_Iterable[_Union[RequestTokens, _Mapping]]] = ..., heartbeat: _Optional[_Union[_common_pb2.Heartbeat, _Mapping]] = ..., closing: _Optional[bool] = ..., step: _Optional[_Union[StepTokens, _Mapping]] = ..., recalled: _Optional[_Iterable[_Union[Recalled, _Mapping]]] = ...) -> None: ...

class StepTokens(_message.Message):
    __slots__ = ("handles", "indices", "token_ids")
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    handles: _containers.RepeatedScalarFieldContainer[int]
    indices: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, handles: _Optional[_Iterable[int]] = ..., indices: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class RequestTokens(_message.Message):
    __slots__ = ("request_id", "attempt", "first_index", "token_ids", "logprobs", "prompt_logprobs", "finished", "held_us")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    HELD_US_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    first_index: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[_common_pb2.TokenLogprob]
    prompt_logprobs: _common_pb2.PromptLogprobs
    finished: _common_pb2.Finished
    held_us: int
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., first_index: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[_common_pb2.TokenLogprob, _Mapping]]] = ..., prompt_logprobs: _Optional[_Union[_common_pb2.PromptLogprobs, _Mapping]] = ..., finished: _Optional[_Union[_common_pb2.Finished, _Mapping]] = ..., held_us: _Optional[int] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OwnerCount(_message.Message):
    __slots__ = ("owner", "count")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    owner: str
    count: int
    def __init__(self, owner: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class PlanPart(_message.Message):
    __slots__ = ("name", "text")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    name: str
    text: str
    def __init__(self, name: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class WorkerStatus(_message.Message):
    __slots__ = ("worker", "model", "running", "waiting", "max_running", "max_model_len", "slots", "pages", "page_size", "uptime_s", "memory_plan", "handoffs", "pid", "peers", "settings", "channels", "lag_us", "shortages", "queued_tokens", "rank_pids", "decode_step_us", "prompt_token_us", "beside_decode", "link_bytes_per_s", "slow_links", "state_bytes", "token_bytes", "memory_held", "rank_devices", "totals", "host", "files")
    class HandoffsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class ChannelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class ShortagesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class SlowLinksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    WORKER_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    MAX_RUNNING_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    MEMORY_PLAN_FIELD_NUMBER: _ClassVar[int]
    HANDOFFS_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    LAG_US_FIELD_NUMBER: _ClassVar[int]
    SHORTAGES_FIELD_NUMBER: _ClassVar[int]
    QUEUED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RANK_PIDS_FIELD_NUMBER: _ClassVar[int]
    DECODE_STEP_US_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_US_FIELD_NUMBER: _ClassVar[int]
    BESIDE_DECODE_FIELD_NUMBER: _ClassVar[int]
    LINK_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    SLOW_LINKS_FIELD_NUMBER: _ClassVar[int]
    STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_HELD_FIELD_NUMBER: _ClassVar[int]
    RANK_DEVICES_FIELD_NUMBER: _ClassVar[int]
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    worker: _common_pb2.WorkerIdentity
    model: str
    running: int
    waiting: int
    max_running: int
    max_model_len: int
    slots: _containers.RepeatedCompositeFieldContainer[OwnerCount]
    pages: _containers.RepeatedCompositeFieldContainer[OwnerCount]
    page_size: int
    uptime_s: float
    memory_plan: _containers.RepeatedCompositeFieldContainer[PlanPart]
    handoffs: _containers.ScalarMap[str, int]
    pid: int
    peers: _containers.RepeatedCompositeFieldContainer[_common_pb2.WorkerIdentity]
    settings: _containers.ScalarMap[str, str]
    channels: _containers.ScalarMap[str, str]
    lag_us: int
    shortages: _containers.ScalarMap[str, float]
    queued_tokens: int
    rank_pids: _containers.RepeatedScalarFieldContainer[int]
    decode_step_us: float
    prompt_token_us: float
    beside_decode: int
    link_bytes_per_s: float
    slow_links: _containers.ScalarMap[str, float]
    state_bytes: int
    token_bytes: int
    memory_held: float
    rank_devices: _containers.RepeatedScalarFieldContainer[str]
    totals: EngineTotals
    host: HostTier
    files: FileTier
    def __init__(self, worker: _Optional[_Union[_common_pb2.WorkerIdentity, _Mapping]] = ..., model: _Optional[str] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., max_running: _Optional[int] = ..., max_model_len: _Optional[int] = ..., slots: _Optional[_Iterable[_Union[OwnerCount, _Mapping]]] = ..., pages: _Optional[_Iterable[_Union[OwnerCount, _Mapping]]] = ..., page_size: _Optional[int] = ..., uptime_s: _Optional[float] = ..., memory_plan: _Optional[_Iterable[_Union[PlanPart, _Mapping]]] = ..., handoffs: _Optional[_Mapping[str, int]] = ..., pid: _Optional[int] = ..., peers: _Optional[_Iterable[_Union[_common_pb2.WorkerIdentity, _Mapping]]] = ..., settings: _Optional[_Mapping[str, str]] = ..., channels: _Optional[_Mapping[str, str]] = ..., lag_us: _Optional[int] = ..., shortages: _Optional[_Mapping[str, float]] = ..., queued_tokens: _Optional[int] = ..., rank_pids: _Optional[_Iterable[int]] = ..., decode_step_us: _Optional[float] = ..., prompt_token_us: _Optional[float] = ..., beside_decode: _Optional[int] = ..., link_bytes_per_s: _Optional[float] = ..., slow_links: _Optional[_Mapping[str, float]] = ..., state_bytes: _Optional[int] = ..., token_bytes: _Optional[int] = ..., memory_held: _Optional[float] = ..., rank_devices: _Optional[_Iterable[str]] = ..., totals: _Optional[_Union[EngineTotals, _Mapping]] = ..., host: _Optional[_Union[HostTier, _Mapping]] = ..., files: _Optional[_Union[FileTier, _Mapping]] = ...) -> None: ...

class HostTier(_message.Message):
    __slots__ = ("slots", "pages", "saving", "loading")
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    SAVING_FIELD_NUMBER: _ClassVar[int]
    LOADING_FIELD_NUMBER: _ClassVar[int]
    slots: _containers.RepeatedCompositeFieldContainer[OwnerCount]
    pages: _containers.RepeatedCompositeFieldContainer[OwnerCount]
    saving: int
    loading: int
    def __init__(self, slots: _Optional[_Iterable[_Union[OwnerCount, _Mapping]]] = ..., pages: _Optional[_Iterable[_Union[OwnerCount, _Mapping]]] = ..., saving: _Optional[int] = ..., loading: _Optional[int] = ...) -> None: ...

class FileTier(_message.Message):
    __slots__ = ("files", "bytes", "most_bytes", "writing", "reading")
    FILES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    MOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    WRITING_FIELD_NUMBER: _ClassVar[int]
    READING_FIELD_NUMBER: _ClassVar[int]
    files: int
    bytes: int
    most_bytes: int
    writing: int
    reading: int
    def __init__(self, files: _Optional[int] = ..., bytes: _Optional[int] = ..., most_bytes: _Optional[int] = ..., writing: _Optional[int] = ..., reading: _Optional[int] = ...) -> None: ...

class EngineTotals(_message.Message):
    __slots__ = ("preemptions", "drafts_proposed", "accepted_lengths", "uncached_tokens", "adopted_tokens", "host_hit_tokens", "file_hit_tokens")
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_PROPOSED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    UNCACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ADOPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HOST_HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FILE_HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    preemptions: int
    drafts_proposed: int
    accepted_lengths: _containers.RepeatedScalarFieldContainer[int]
    uncached_tokens: int
    adopted_tokens: int
    host_hit_tokens: int
    file_hit_tokens: int
    def __init__(self, preemptions: _Optional[int] = ..., drafts_proposed: _Optional[int] = ..., accepted_lengths: _Optional[_Iterable[int]] = ..., uncached_tokens: _Optional[int] = ..., adopted_tokens: _Optional[int] = ..., host_hit_tokens: _Optional[int] = ..., file_hit_tokens: _Optional[int] = ...) -> None: ...

class FlushCacheRequest(_message.Message):
    __slots__ = ("timeout_ms", "salts")
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    SALTS_FIELD_NUMBER: _ClassVar[int]
    timeout_ms: int
    salts: bytes
    def __init__(self, timeout_ms: _Optional[int] = ..., salts: _Optional[bytes] = ...) -> None: ...

class FlushCacheReply(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...

class AuditRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AuditReply(_message.Message):
    __slots__ = ("clean", "findings")
    CLEAN_FIELD_NUMBER: _ClassVar[int]
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    clean: bool
    findings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, clean: _Optional[bool] = ..., findings: _Optional[_Iterable[str]] = ...) -> None: ...

class StartProfileRequest(_message.Message):
    __slots__ = ("steps", "timeout_ms", "with_stack", "record_shapes")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    WITH_STACK_FIELD_NUMBER: _ClassVar[int]
    RECORD_SHAPES_FIELD_NUMBER: _ClassVar[int]
    steps: int
    timeout_ms: int
    with_stack: bool
    record_shapes: bool
    def __init__(self, steps: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., with_stack: _Optional[bool] = ..., record_shapes: _Optional[bool] = ...) -> None: ...

class StartProfileReply(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...

class StopProfileRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StopProfileReply(_message.Message):
    __slots__ = ("error", "file", "steps", "bytes")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    file: str
    steps: int
    bytes: int
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., file: _Optional[str] = ..., steps: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class MetricsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MetricsReply(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: bytes
    def __init__(self, text: _Optional[bytes] = ...) -> None: ...

class Demand(_message.Message):
    __slots__ = ("wanted", "held", "most", "share")
    WANTED_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    wanted: int
    held: int
    most: int
    share: int
    def __init__(self, wanted: _Optional[int] = ..., held: _Optional[int] = ..., most: _Optional[int] = ..., share: _Optional[int] = ...) -> None: ...

class Share(_message.Message):
    __slots__ = ("number", "units")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    number: int
    units: int
    def __init__(self, number: _Optional[int] = ..., units: _Optional[int] = ...) -> None: ...

class WorkerReport(_message.Message):
    __slots__ = ("hello", "status", "leaving", "share", "routers", "cache", "same_details")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    ROUTERS_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    SAME_DETAILS_FIELD_NUMBER: _ClassVar[int]
    hello: _common_pb2.Hello
    status: WorkerStatus
    leaving: bool
    share: Share
    routers: _containers.RepeatedScalarFieldContainer[str]
    cache: CacheReport
    same_details: bool
    def __init__(self, hello: _Optional[_Union[_common_pb2.Hello, _Mapping]] = ..., status: _Optional[_Union[WorkerStatus, _Mapping]] = ..., leaving: _Optional[bool] = ..., share: _Optional[_Union[Share, _Mapping]] = ..., routers: _Optional[_Iterable[str]] = ..., cache: _Optional[_Union[CacheReport, _Mapping]] = ..., same_details: _Optional[bool] = ...) -> None: ...

class CacheReport(_message.Message):
    __slots__ = ("sequence", "after", "whole", "made", "depths", "evicted")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    MADE_FIELD_NUMBER: _ClassVar[int]
    DEPTHS_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    after: int
    whole: bool
    made: _containers.RepeatedScalarFieldContainer[int]
    depths: _containers.RepeatedScalarFieldContainer[int]
    evicted: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, sequence: _Optional[int] = ..., after: _Optional[int] = ..., whole: _Optional[bool] = ..., made: _Optional[_Iterable[int]] = ..., depths: _Optional[_Iterable[int]] = ..., evicted: _Optional[_Iterable[int]] = ...) -> None: ...

class RegistryReply(_message.Message):
    __slots__ = ("router_id", "lease_ms", "error", "leaving", "demand", "cache_wanted", "returned", "keeps_details")
    ROUTER_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    DEMAND_FIELD_NUMBER: _ClassVar[int]
    CACHE_WANTED_FIELD_NUMBER: _ClassVar[int]
    RETURNED_FIELD_NUMBER: _ClassVar[int]
    KEEPS_DETAILS_FIELD_NUMBER: _ClassVar[int]
    router_id: str
    lease_ms: int
    error: _common_pb2.Error
    leaving: bool
    demand: Demand
    cache_wanted: bool
    returned: bool
    keeps_details: bool
    def __init__(self, router_id: _Optional[str] = ..., lease_ms: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., leaving: _Optional[bool] = ..., demand: _Optional[_Union[Demand, _Mapping]] = ..., cache_wanted: _Optional[bool] = ..., returned: _Optional[bool] = ..., keeps_details: _Optional[bool] = ...) -> None: ...
