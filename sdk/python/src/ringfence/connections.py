"""The connection of a lane, which is replaced when nothing is heard on it any more."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from ringfence.errors import SessionError

PATIENCE_LEAST, PATIENCE_MAX = 1.0, 10.0
"""How old, in seconds, a connection must be before a request replaces it on which nothing was ever heard."""
PROBE_TIMEOUT = 0.5
"""How long the answer to a probe is waited for, in seconds."""


class _Connection:
    """One channel."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel
        self.made = self.heard = time.monotonic()
        """When it was made, or the newest answer or frame came."""
        self.ever = False
        """An answer or a frame has come."""
        self.open = 0
        """Requests and streams that are under way."""
        self.probing = False
        """A probe is under way."""


class Connections:
    """Is a channel for the few methods that a lane has.

    Its channel is replaced when a request has ended by its deadline, or a reservation is not renewed, and nothing was heard meanwhile: the other
    end may be gone without a word, and TCP would wait for a quarter of an hour. What is under way on the old one goes on.
    """

    def __init__(self, dial: Callable[[], grpc.Channel]) -> None:
        self._dial = dial
        self._lock = threading.Lock()  # guards the others, and the fields of all connections
        self._connection = _Connection(dial())
        self._old: set[_Connection] = set()
        self._patience = PATIENCE_LEAST
        self._closed = False
        self._process = os.getpid()

    def check_process(self) -> None:
        """Raises RuntimeError in a child of a fork: gRPC's threads are in its parent alone, and a request of the child may never end."""
        if os.getpid() != self._process:
            raise RuntimeError("the lane was made before a fork: make another one in the child process")

    def unary_unary(self, method: str, serialize: Callable[[Any], bytes], deserialize: Callable[[bytes], Any]) -> _Unary:
        return _Unary(self, method, serialize, deserialize)

    def stream_stream(self, method: str, serialize: Callable[[Any], bytes], deserialize: Callable[[bytes], Any]) -> Callable[..., _Stream]:
        def begin(requests: Iterator[Any], metadata: Any) -> _Stream:
            connection = self.begin()
            try:
                call: Any = connection.channel.stream_stream(method, serialize, deserialize)(requests, metadata=metadata)
            except BaseException:
                self.ended(connection)
                raise
            return _Stream(self, connection, call)

        return begin

    def close(self) -> None:
        with self._lock:
            self._closed = True
            connections = [self._connection, *self._old]
            self._old.clear()
        for connection in connections:
            connection.channel.close()

    def silent(self, since: float) -> None:
        """Replaces the channel if nothing was heard on it since an instant of time.monotonic from which on it should have been."""
        with self._lock:
            self._replace(since)

    def unanswered(self, since: float) -> None:
        """Is silent for a request that has ended by its deadline.

        A channel on which nothing was ever heard may still be connecting: each one that requests replace in a row has twice the time of the one
        before, PATIENCE_MAX at most. Otherwise requests with a timeout shorter than that would never connect.
        """
        with self._lock:
            of = self._connection
            if not of.ever and time.monotonic() - of.made < self._patience:
                return
            if self._replace(since) and not of.ever:
                self._patience = min(2 * self._patience, PATIENCE_MAX)

    def probe(self, connection: _Connection, since: float) -> None:
        """Asks the router how it is, which every router answers at once, if nothing was heard on a channel since an instant of time.monotonic.

        The channel is replaced if there is no answer. What the answer says is of no interest.
        """
        with self._lock:
            if self._closed or connection is not self._connection or connection.probing or connection.heard >= since:
                return
            connection.probing = True
            connection.open += 1
        begun = time.monotonic()
        method: Any = connection.channel.unary_unary("/grpc.health.v1.Health/Check", None, None)
        try:
            future = method.future(b"", timeout=PROBE_TIMEOUT)
        except ValueError:  # the lane was closed meanwhile
            self.ended(connection)
            return
        future.add_done_callback(lambda _: self._probed(connection))
        _Answer(self, connection, begun, future)

    def _probed(self, connection: _Connection) -> None:
        with self._lock:
            connection.probing = False

    def told(self, connection: _Connection, at: float) -> None:
        """Notes an answer or a frame that has come at an instant."""
        with self._lock:
            connection.heard, connection.ever = max(connection.heard, at), True
            self._patience = PATIENCE_LEAST

    def _replace(self, since: float) -> bool:
        """Reports whether it has replaced the channel. The lock is held."""
        old = self._connection
        if self._closed or old.heard >= since:
            return False
        try:
            self._connection = _Connection(self._dial())
        except SessionError:  # a file of the option tls is gone
            return False
        self._old.add(old)
        self._end_unused(old)
        return True

    def begin(self) -> _Connection:
        self.check_process()
        with self._lock:
            self._connection.open += 1
            return self._connection

    def ended(self, connection: _Connection) -> None:
        with self._lock:
            connection.open -= 1
            self._end_unused(connection)

    def _end_unused(self, connection: _Connection) -> None:
        """The lock is held."""
        if connection.open == 0 and connection in self._old:
            self._old.remove(connection)
            # This may be a thread of the channel, for which close would wait.
            threading.Thread(target=connection.channel.close, name="ringfence-close", daemon=True).start()


class _Unary:
    """One method."""

    def __init__(self, connections: Connections, method: str, serialize: Callable[[Any], bytes], deserialize: Callable[[bytes], Any]) -> None:
        self._connections, self._of = connections, (method, serialize, deserialize)

    def future(self, request: Any, timeout: float, metadata: Any) -> _Answer:
        connection, begun = self._connections.begin(), time.monotonic()
        try:
            method: Any = connection.channel.unary_unary(*self._of)
            return _Answer(self._connections, connection, begun, method.future(request, timeout=timeout, metadata=metadata))
        except BaseException:
            self._connections.ended(connection)
            raise


class _Answer:
    """gRPC's future of a response. Its end is told only after a silent channel was replaced."""

    def __init__(self, connections: Connections, connection: _Connection, begun: float, future: Any) -> None:
        self._connections, self._connection, self._begun, self._future = connections, connection, begun, future
        self._looked = False
        self._left_to_probe = False
        future.add_done_callback(self._settle)

    def _settle(self, _: object) -> None:
        self._look()
        self._connections.ended(self._connection)

    def _look(self) -> None:
        """Notes how it ended. The second time would be too late: another request may have begun since."""
        now = time.monotonic()
        if self._looked:
            return
        self._looked = True
        code = self._future.code()
        if code == grpc.StatusCode.DEADLINE_EXCEEDED and self._left_to_probe:
            return
        if code == grpc.StatusCode.DEADLINE_EXCEEDED:
            self._connections.unanswered(self._begun)
        elif code == grpc.StatusCode.UNAVAILABLE:  # as of a connection that was refused
            self._connection.heard = max(self._connection.heard, now)
        elif code != grpc.StatusCode.CANCELLED:
            self._connections.told(self._connection, now)

    def probe(self) -> None:
        """Leaves it to a probe whether the channel is replaced: the router need not have answered by the deadline of this request."""
        self._left_to_probe = True
        self._connections.probe(self._connection, self._begun)

    def result(self, timeout: float | None = None) -> Any:
        """Raises grpc.FutureTimeoutError if there is no result after so many seconds."""
        try:
            return self._future.result(timeout)
        finally:
            if self._future.done():  # not if the wait was interrupted
                self._look()

    def add_done_callback(self, function: Callable[[Any], object]) -> None:
        self._future.add_done_callback(function)

    def cancel(self) -> None:
        self._future.cancel()


class _Stream:
    """gRPC's call of a stream."""

    def __init__(self, connections: Connections, connection: _Connection, call: Any) -> None:
        self._connections, self._connection, self._call = connections, connection, call
        if not call.add_callback(self._settle):
            self._settle()

    def _settle(self) -> None:
        self._connections.ended(self._connection)

    def __iter__(self) -> Iterator[Any]:
        for frame in self._call:
            self._connections.told(self._connection, time.monotonic())
            yield frame

    def cancel(self) -> None:
        self._call.cancel()
