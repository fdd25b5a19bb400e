"""State: what the turns of a key leave in this process for the next one."""

from __future__ import annotations

import datetime
import enum
import inspect
import numbers
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Container
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from ringfence.event import Event, Fence
    from ringfence.stream import Stream

V = TypeVar("V")

STATE_MAX_DEFAULT = 100_000
"""The keys whose states are kept."""

_FIXED = (numbers.Number, str, bytes, tuple, frozenset, enum.Enum, datetime.date, datetime.time, datetime.timedelta)
"""Types of values that no handler can change in place: after a write of the handler they would be outdated."""


class _Kept:
    """The states of one key."""

    __slots__ = ("generation", "newest", "partition", "stream", "used", "user", "values")

    def __init__(self, event: Event, stream: Stream) -> None:
        self.partition = event.partition
        self.stream = stream
        self.generation = event._generation
        self.newest: Fence = event.fence  # of the newest turn that had them
        self.user: Event | None = event  # the event whose handler has them
        self.values: dict[str, Any] = {}
        self.used: dict[str, Any] = {}  # those of values that the user has asked for

    def is_of(self, event: Event) -> bool:
        """Reports whether the turn of an event is the next one of the key, anywhere, after the turn that left the states."""
        return self.user is None and self.generation == event._generation and self.newest.token == event.fence.token and self.stream is event._stream


class States:
    """What the last turns of keys have left, for all streams of a worker. Safe for concurrent use; its lock is taken last."""

    def __init__(self, most: int) -> None:
        self.kept: OrderedDict[bytes, _Kept] = OrderedDict()  # the last used last. While it is empty, handlers cost only a look at that
        self._most = most
        self._lock = threading.Lock()  # guards what is in kept

    def begun(self, event: Event) -> None:
        """Begins a turn. What the turn before has left is for this one alone, asked for or not: its handler may write without asking, lose its
        key and continue, and then the next turn begins before it has ended."""
        with self._lock:
            self._take(event)

    def _take(self, event: Event) -> _Kept | None:
        """Makes a turn the user of the states of its key if they are sure to be the newest, and drops them otherwise. The lock is held."""
        key = event.key
        kept = self.kept.get(key)
        if kept is None or kept.user is event:
            return kept
        if event.fence < kept.newest:  # it has lost its key to a later turn, and continues
            return None
        if not kept.is_of(event):
            self._drop(key)
            return None
        kept.user, kept.used, kept.newest = event, {}, event.fence
        self.kept.move_to_end(key)
        return kept

    def get(self, event: Event, name: str) -> tuple[_Kept | None, Any]:
        """Returns what the turn before has left, None if there is nothing that is sure to be the newest: then the handler loads it, and puts it
        into the first result."""
        with self._lock:
            kept = self._take(event)
            if kept is not None:
                value = kept.values.get(name)
                if value is not None:
                    kept.used[name] = value
                return kept, value
            kept = self._add(event)
        if kept is not None and kept.stream.runner.has_lost(event.key):  # once they are added: from then on, lose drops them
            self.lose(event.key)
            kept = None
        return kept, None

    def _add(self, event: Event) -> _Kept | None:
        """Makes a turn the user of states that it has not loaded yet: a handler may lose the key, write and end during the load. Returns None if the
        turn may leave none. The lock is held."""
        key, stream = event.key, event._stream
        if not self._most or not event._generation or stream is None or event._cause is not None or key in self.kept:  # the states of a later turn
            return None
        kept = self.kept[key] = _Kept(event, stream)
        if len(self.kept) > self._most:
            self._drop(next(iter(self.kept)))
        return kept

    def _drop(self, key: bytes) -> None:
        """Drops the states of a key. The lock is held."""
        user = self.kept.pop(key).user
        if user is not None:
            user._generation = 0  # its handler may still change what it has here, so what it loads from now on is not kept

    def lose(self, key: bytes) -> None:
        """Drops the states of a key that a running handler has lost: a later turn may have loaded them before the handler's last write. Until it
        has returned, :meth:`Runner.has_lost` keeps further ones away."""
        if not self.kept:
            return
        with self._lock:
            if key in self.kept:
                self._drop(key)

    def put(self, event: Event, kept: _Kept, name: str, value: object) -> None:
        """Keeps a state that a handler has loaded, unless those of its turn were dropped meanwhile."""
        if isinstance(value, _FIXED):
            return
        if event._cause is not None:  # its handler was cancelled, or has returned while this was loaded: nobody would drop what refers to its frame
            return
        with self._lock:
            if self.kept.get(event.key) is kept:
                kept.values[name] = kept.used[name] = value

    def ended(self, event: Event, done: bool) -> None:
        """Ends a turn. If its handler has done its work, what it has asked for is kept; all else of the key is dropped. So a handler whose loss of
        the key nobody has noticed drops what the turn that runs now has: that may have loaded it before this one's last write."""
        key, stream = event.key, event._stream
        with self._lock:
            kept = self.kept.get(key)
            if kept is None:
                return
            if kept.user is event and done and kept.used and stream is not None and not stream.over:  # it would keep an ended stream in memory
                kept.user, kept.values, kept.used = None, kept.used, {}
            else:
                self._drop(key)

    def forget(self, stream: Stream, partitions: Container[int] | None = None) -> None:
        """Drops the states of partitions that a router takes back, or all of a stream."""
        if not self.kept:
            return
        with self._lock:
            for key in [key for key, kept in self.kept.items() if kept.stream is stream and (partitions is None or kept.partition in partitions)]:
                self._drop(key)


def state(event: Event, load: Callable[[], V], name: str) -> V:
    """Is :meth:`ringfence.Event.state`."""
    states = event._states()
    kept, value = (None, None) if states is None else states.get(event, name)
    if value is None:
        value = load()
        if inspect.isawaitable(value):
            close = getattr(value, "close", None)
            if close is not None:
                close()  # a coroutine that nobody awaits, so that Python does not warn of it as well
            raise TypeError("load returned an awaitable: await event.state_async(load) instead of event.state(load)")
        if states is not None and kept is not None and value is not None:
            states.put(event, kept, name, value)
    return cast(V, value)


async def state_async(event: Event, load: Callable[[], Awaitable[V]], name: str) -> V:
    """Is :meth:`ringfence.Event.state_async`."""
    states = event._states()
    kept, value = (None, None) if states is None else states.get(event, name)
    if value is None:
        value = await load()
        if states is not None and kept is not None and value is not None:
            states.put(event, kept, name, value)
    return cast(V, value)
