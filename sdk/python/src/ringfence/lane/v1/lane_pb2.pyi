from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Optional as _Optional, Union as _Union

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
