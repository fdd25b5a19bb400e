from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNSPECIFIED: _ClassVar[Outcome]
    OUTCOME_REPLIED: _ClassVar[Outcome]
    OUTCOME_FAILED: _ClassVar[Outcome]
    OUTCOME_NOT_RUN: _ClassVar[Outcome]
    OUTCOME_UNKNOWN: _ClassVar[Outcome]
    OUTCOME_DONE_BEFORE: _ClassVar[Outcome]
OUTCOME_UNSPECIFIED: Outcome
OUTCOME_REPLIED: Outcome
OUTCOME_FAILED: Outcome
OUTCOME_NOT_RUN: Outcome
OUTCOME_UNKNOWN: Outcome
OUTCOME_DONE_BEFORE: Outcome

class SendRequest(_message.Message):
    __slots__ = ("key", "payload", "name", "properties", "after_ms", "at_ms", "id")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    KEY_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    payload: bytes
    name: str
    properties: _containers.ScalarMap[str, str]
    after_ms: int
    at_ms: int
    id: str
    def __init__(self, key: _Optional[bytes] = ..., payload: _Optional[bytes] = ..., name: _Optional[str] = ..., properties: _Optional[_Mapping[str, str]] = ..., after_ms: _Optional[int] = ..., at_ms: _Optional[int] = ..., id: _Optional[str] = ...) -> None: ...

class SendResponse(_message.Message):
    __slots__ = ("message_id", "due_ms")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    DUE_MS_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    due_ms: int
    def __init__(self, message_id: _Optional[str] = ..., due_ms: _Optional[int] = ...) -> None: ...

class ReserveRequest(_message.Message):
    __slots__ = ("ask", "renew", "release")
    ASK_FIELD_NUMBER: _ClassVar[int]
    RENEW_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    ask: Ask
    renew: Renew
    release: Release
    def __init__(self, ask: _Optional[_Union[Ask, _Mapping]] = ..., renew: _Optional[_Union[Renew, _Mapping]] = ..., release: _Optional[_Union[Release, _Mapping]] = ...) -> None: ...

class Ask(_message.Message):
    __slots__ = ("key", "id", "wait_ms", "resume", "path", "raw_clock", "ttl_ms")
    KEY_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    RAW_CLOCK_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    id: bytes
    wait_ms: int
    resume: bool
    path: _containers.RepeatedScalarFieldContainer[int]
    raw_clock: bool
    ttl_ms: int
    def __init__(self, key: _Optional[bytes] = ..., id: _Optional[bytes] = ..., wait_ms: _Optional[int] = ..., resume: bool = ..., path: _Optional[_Iterable[int]] = ..., raw_clock: bool = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class Renew(_message.Message):
    __slots__ = ("k",)
    K_FIELD_NUMBER: _ClassVar[int]
    k: int
    def __init__(self, k: _Optional[int] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReserveResponse(_message.Message):
    __slots__ = ("granted", "renewed", "over")
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    RENEWED_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    granted: Granted
    renewed: Renewed
    over: Over
    def __init__(self, granted: _Optional[_Union[Granted, _Mapping]] = ..., renewed: _Optional[_Union[Renewed, _Mapping]] = ..., over: _Optional[_Union[Over, _Mapping]] = ...) -> None: ...

class Granted(_message.Message):
    __slots__ = ("token", "turn", "remaining_ns")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    REMAINING_NS_FIELD_NUMBER: _ClassVar[int]
    token: int
    turn: int
    remaining_ns: int
    def __init__(self, token: _Optional[int] = ..., turn: _Optional[int] = ..., remaining_ns: _Optional[int] = ...) -> None: ...

class Renewed(_message.Message):
    __slots__ = ("k", "remaining_ns", "covered")
    K_FIELD_NUMBER: _ClassVar[int]
    REMAINING_NS_FIELD_NUMBER: _ClassVar[int]
    COVERED_FIELD_NUMBER: _ClassVar[int]
    k: int
    remaining_ns: int
    covered: bool
    def __init__(self, k: _Optional[int] = ..., remaining_ns: _Optional[int] = ..., covered: bool = ...) -> None: ...

class Over(_message.Message):
    __slots__ = ("code", "text", "retry_after_ms")
    CODE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    code: str
    text: str
    retry_after_ms: int
    def __init__(self, code: _Optional[str] = ..., text: _Optional[str] = ..., retry_after_ms: _Optional[int] = ...) -> None: ...

class InvokeRequest(_message.Message):
    __slots__ = ("key", "method", "payload", "id", "timeout_ms", "path", "traceparent")
    KEY_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    method: str
    payload: bytes
    id: str
    timeout_ms: int
    path: _containers.RepeatedScalarFieldContainer[int]
    traceparent: str
    def __init__(self, key: _Optional[bytes] = ..., method: _Optional[str] = ..., payload: _Optional[bytes] = ..., id: _Optional[str] = ..., timeout_ms: _Optional[int] = ..., path: _Optional[_Iterable[int]] = ..., traceparent: _Optional[str] = ...) -> None: ...

class InvokeResponse(_message.Message):
    __slots__ = ("outcome", "reply", "code", "text", "retry_after_ms")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    outcome: Outcome
    reply: bytes
    code: str
    text: str
    retry_after_ms: int
    def __init__(self, outcome: _Optional[_Union[Outcome, str]] = ..., reply: _Optional[bytes] = ..., code: _Optional[str] = ..., text: _Optional[str] = ..., retry_after_ms: _Optional[int] = ...) -> None: ...
