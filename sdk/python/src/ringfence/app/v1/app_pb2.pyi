from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MissedPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MISSED_POLICY_UNSPECIFIED: _ClassVar[MissedPolicy]
    MISSED_POLICY_LATEST: _ClassVar[MissedPolicy]
    MISSED_POLICY_ALL: _ClassVar[MissedPolicy]
    MISSED_POLICY_SKIP: _ClassVar[MissedPolicy]

class ResultKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RESULT_KIND_UNSPECIFIED: _ClassVar[ResultKind]
    RESULT_KIND_DONE: _ClassVar[ResultKind]
    RESULT_KIND_RETRY: _ClassVar[ResultKind]
    RESULT_KIND_REJECT: _ClassVar[ResultKind]
    RESULT_KIND_NOT_STARTED: _ClassVar[ResultKind]
    RESULT_KIND_CANCELLED: _ClassVar[ResultKind]
MISSED_POLICY_UNSPECIFIED: MissedPolicy
MISSED_POLICY_LATEST: MissedPolicy
MISSED_POLICY_ALL: MissedPolicy
MISSED_POLICY_SKIP: MissedPolicy
RESULT_KIND_UNSPECIFIED: ResultKind
RESULT_KIND_DONE: ResultKind
RESULT_KIND_RETRY: ResultKind
RESULT_KIND_REJECT: ResultKind
RESULT_KIND_NOT_STARTED: ResultKind
RESULT_KIND_CANCELLED: ResultKind

class WorkRequest(_message.Message):
    __slots__ = ("receipt", "hello", "results", "progress", "ping", "drain")
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    receipt: int
    hello: Hello
    results: Results
    progress: Progress
    ping: Ping
    drain: Drain
    def __init__(self, receipt: _Optional[int] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., results: _Optional[_Union[Results, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ...) -> None: ...

class WorkResponse(_message.Message):
    __slots__ = ("receipt", "welcome", "deliveries", "pong", "revoke", "suspend", "resume", "go_away")
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    REVOKE_FIELD_NUMBER: _ClassVar[int]
    SUSPEND_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    GO_AWAY_FIELD_NUMBER: _ClassVar[int]
    receipt: int
    welcome: Welcome
    deliveries: Deliveries
    pong: Pong
    revoke: Revoke
    suspend: Suspend
    resume: Resume
    go_away: GoAway
    def __init__(self, receipt: _Optional[int] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., deliveries: _Optional[_Union[Deliveries, _Mapping]] = ..., pong: _Optional[_Union[Pong, _Mapping]] = ..., revoke: _Optional[_Union[Revoke, _Mapping]] = ..., suspend: _Optional[_Union[Suspend, _Mapping]] = ..., resume: _Optional[_Union[Resume, _Mapping]] = ..., go_away: _Optional[_Union[GoAway, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("worker", "max_in_flight", "max_batch_per_key", "sdk", "capabilities", "version_min", "version_max", "schedules")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    MAX_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_PER_KEY_FIELD_NUMBER: _ClassVar[int]
    SDK_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    VERSION_MIN_FIELD_NUMBER: _ClassVar[int]
    VERSION_MAX_FIELD_NUMBER: _ClassVar[int]
    SCHEDULES_FIELD_NUMBER: _ClassVar[int]
    worker: str
    max_in_flight: int
    max_batch_per_key: int
    sdk: str
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    version_min: int
    version_max: int
    schedules: _containers.RepeatedCompositeFieldContainer[Schedule]
    def __init__(self, worker: _Optional[str] = ..., max_in_flight: _Optional[int] = ..., max_batch_per_key: _Optional[int] = ..., sdk: _Optional[str] = ..., capabilities: _Optional[_Iterable[str]] = ..., version_min: _Optional[int] = ..., version_max: _Optional[int] = ..., schedules: _Optional[_Iterable[_Union[Schedule, _Mapping]]] = ...) -> None: ...

class Schedule(_message.Message):
    __slots__ = ("name", "cron", "zone", "every_ms", "at_ms", "jitter_ms", "missed", "grace_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CRON_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    EVERY_MS_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    JITTER_MS_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    cron: str
    zone: str
    every_ms: int
    at_ms: int
    jitter_ms: int
    missed: MissedPolicy
    grace_ms: int
    def __init__(self, name: _Optional[str] = ..., cron: _Optional[str] = ..., zone: _Optional[str] = ..., every_ms: _Optional[int] = ..., at_ms: _Optional[int] = ..., jitter_ms: _Optional[int] = ..., missed: _Optional[_Union[MissedPolicy, str]] = ..., grace_ms: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("node", "group", "limits", "version", "worker", "capabilities")
    NODE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    node: str
    group: str
    limits: Limits
    version: int
    worker: str
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, node: _Optional[str] = ..., group: _Optional[str] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., version: _Optional[int] = ..., worker: _Optional[str] = ..., capabilities: _Optional[_Iterable[str]] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("max_in_flight", "frame_max_bytes", "ping_interval_ms", "reason_max_bytes")
    MAX_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    FRAME_MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    PING_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    max_in_flight: int
    frame_max_bytes: int
    ping_interval_ms: int
    reason_max_bytes: int
    def __init__(self, max_in_flight: _Optional[int] = ..., frame_max_bytes: _Optional[int] = ..., ping_interval_ms: _Optional[int] = ..., reason_max_bytes: _Optional[int] = ...) -> None: ...

class Deliveries(_message.Message):
    __slots__ = ("number", "topics", "tokens", "names", "deliveries", "schema_versions")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    number: int
    topics: _containers.RepeatedScalarFieldContainer[str]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    deliveries: _containers.RepeatedCompositeFieldContainer[Delivery]
    schema_versions: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, number: _Optional[int] = ..., topics: _Optional[_Iterable[str]] = ..., tokens: _Optional[_Iterable[int]] = ..., names: _Optional[_Iterable[str]] = ..., deliveries: _Optional[_Iterable[_Union[Delivery, _Mapping]]] = ..., schema_versions: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Delivery(_message.Message):
    __slots__ = ("delivery_id", "partition", "key", "payload", "properties", "ledger_id", "entry_id", "batch_index", "topic_partition", "topic", "token", "publish_time_ms", "event_time_ms", "attempt", "traceparent", "redelivery_count", "turn", "call", "generation", "timer", "schema_version")
    DELIVERY_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_INDEX_FIELD_NUMBER: _ClassVar[int]
    TOPIC_PARTITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    EVENT_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    REDELIVERY_COUNT_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    TIMER_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    delivery_id: int
    partition: int
    key: bytes
    payload: bytes
    properties: _containers.RepeatedCompositeFieldContainer[Property]
    ledger_id: int
    entry_id: int
    batch_index: int
    topic_partition: int
    topic: int
    token: int
    publish_time_ms: int
    event_time_ms: int
    attempt: int
    traceparent: str
    redelivery_count: int
    turn: int
    call: Call
    generation: int
    timer: Timer
    schema_version: int
    def __init__(self, delivery_id: _Optional[int] = ..., partition: _Optional[int] = ..., key: _Optional[bytes] = ..., payload: _Optional[bytes] = ..., properties: _Optional[_Iterable[_Union[Property, _Mapping]]] = ..., ledger_id: _Optional[int] = ..., entry_id: _Optional[int] = ..., batch_index: _Optional[int] = ..., topic_partition: _Optional[int] = ..., topic: _Optional[int] = ..., token: _Optional[int] = ..., publish_time_ms: _Optional[int] = ..., event_time_ms: _Optional[int] = ..., attempt: _Optional[int] = ..., traceparent: _Optional[str] = ..., redelivery_count: _Optional[int] = ..., turn: _Optional[int] = ..., call: _Optional[_Union[Call, _Mapping]] = ..., generation: _Optional[int] = ..., timer: _Optional[_Union[Timer, _Mapping]] = ..., schema_version: _Optional[int] = ...) -> None: ...

class Timer(_message.Message):
    __slots__ = ("name", "due_ms", "firing")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DUE_MS_FIELD_NUMBER: _ClassVar[int]
    FIRING_FIELD_NUMBER: _ClassVar[int]
    name: str
    due_ms: int
    firing: Firing
    def __init__(self, name: _Optional[str] = ..., due_ms: _Optional[int] = ..., firing: _Optional[_Union[Firing, _Mapping]] = ...) -> None: ...

class Firing(_message.Message):
    __slots__ = ("time_ms", "missed")
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    time_ms: int
    missed: int
    def __init__(self, time_ms: _Optional[int] = ..., missed: _Optional[int] = ...) -> None: ...

class Call(_message.Message):
    __slots__ = ("method", "timeout_ms", "id", "path")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    method: str
    timeout_ms: int
    id: str
    path: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, method: _Optional[str] = ..., timeout_ms: _Optional[int] = ..., id: _Optional[str] = ..., path: _Optional[_Iterable[int]] = ...) -> None: ...

class Property(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: int
    value: str
    def __init__(self, name: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...

class Results(_message.Message):
    __slots__ = ("number", "results")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    number: int
    results: _containers.RepeatedCompositeFieldContainer[Result]
    def __init__(self, number: _Optional[int] = ..., results: _Optional[_Iterable[_Union[Result, _Mapping]]] = ...) -> None: ...

class Result(_message.Message):
    __slots__ = ("delivery_id", "kind", "after_ms", "reason", "reply", "code", "started_ns", "took_ns")
    DELIVERY_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    STARTED_NS_FIELD_NUMBER: _ClassVar[int]
    TOOK_NS_FIELD_NUMBER: _ClassVar[int]
    delivery_id: int
    kind: ResultKind
    after_ms: int
    reason: str
    reply: bytes
    code: str
    started_ns: int
    took_ns: int
    def __init__(self, delivery_id: _Optional[int] = ..., kind: _Optional[_Union[ResultKind, str]] = ..., after_ms: _Optional[int] = ..., reason: _Optional[str] = ..., reply: _Optional[bytes] = ..., code: _Optional[str] = ..., started_ns: _Optional[int] = ..., took_ns: _Optional[int] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("delivery_ids",)
    DELIVERY_IDS_FIELD_NUMBER: _ClassVar[int]
    delivery_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, delivery_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("k",)
    K_FIELD_NUMBER: _ClassVar[int]
    k: int
    def __init__(self, k: _Optional[int] = ...) -> None: ...

class Pong(_message.Message):
    __slots__ = ("k", "remaining_ns", "draining")
    K_FIELD_NUMBER: _ClassVar[int]
    REMAINING_NS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    k: int
    remaining_ns: int
    draining: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, k: _Optional[int] = ..., remaining_ns: _Optional[int] = ..., draining: _Optional[_Iterable[int]] = ...) -> None: ...

class Revoke(_message.Message):
    __slots__ = ("partitions", "all", "reason", "delivery_ids", "timed_out")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_IDS_FIELD_NUMBER: _ClassVar[int]
    TIMED_OUT_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedScalarFieldContainer[int]
    all: bool
    reason: str
    delivery_ids: _containers.RepeatedScalarFieldContainer[int]
    timed_out: bool
    def __init__(self, partitions: _Optional[_Iterable[int]] = ..., all: bool = ..., reason: _Optional[str] = ..., delivery_ids: _Optional[_Iterable[int]] = ..., timed_out: bool = ...) -> None: ...

class Suspend(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Resume(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GoAway(_message.Message):
    __slots__ = ("reason", "retry_after_ms")
    REASON_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    retry_after_ms: int
    def __init__(self, reason: _Optional[str] = ..., retry_after_ms: _Optional[int] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ("reason", "node")
    REASON_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    node: bool
    def __init__(self, reason: _Optional[str] = ..., node: bool = ...) -> None: ...
