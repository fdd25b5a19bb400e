"""The options of run, serve and Worker, and their limits."""

from __future__ import annotations

import dataclasses
import inspect
import ipaddress
import logging
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict

from ringfence.clock import LeaseClock, system_clock
from ringfence.errors import GROUP, ArgumentError, SessionError, Unauthenticated
from ringfence.schedules import by_name
from ringfence.state import STATE_MAX_DEFAULT

if TYPE_CHECKING:
    from ringfence.call import CallHandler
    from ringfence.event import Event
    from ringfence.schedules import Schedule

ENDPOINT_ENV = "RINGFENCE_APP_ENDPOINT"
"""The environment variable with the router's endpoint."""
TOKEN_FILE_ENV = "RINGFENCE_APP_TOKEN_FILE"
"""The environment variable that names the token file."""
DEFAULT_ENDPOINT = "127.0.0.1:16650"

MAX_IN_FLIGHT_DEFAULT = 1000
MAX_IN_FLIGHT_MAX = 100_000
THREADS_DEFAULT = 128
DRAIN_GRACE_DEFAULT = 30.0


class Session(NamedTuple):
    """A session with a router."""

    node: str
    """The router's member name."""
    group: str
    """The router group."""
    worker: str
    """The router's name for this worker, as in its logs."""
    in_flight_max: int
    """The most unanswered events: max_in_flight, or the router's lower bound."""


@dataclasses.dataclass(frozen=True)
class Hooks:
    """Functions that report the SDK's activity, for metrics. They must neither block nor raise: events and Pings wait for them.

    What they raise is logged.
    """

    started: Callable[[Event], object] | None = None
    """Called before the handler of an event, in the handler's thread. Many calls may run at once."""
    finished: Callable[[Event, Result], object] | None = None
    """Called once for each ``started``, in the same thread."""
    connected: Callable[[Session], object] | None = None
    """Called when a session with the router is established, before its first event. Never at once with ``disconnected``."""
    disconnected: Callable[[SessionError | None], object] | None = None
    """Called at the end of a session and after a failed attempt to establish one; None means that the worker stops."""
    window: Callable[[int, int], object] | None = None
    """Called with the number of unanswered events and its maximum when the number has changed, about once for each frame; one call at a time.
    At the end of a session the number becomes 0."""


ResultKind = Literal["done", "retry", "reject", "cancelled", "not_started"]
"""How a handler ended. not_started: a call of a method without a handler."""


class Result(NamedTuple):
    """How the handler of an event ended."""

    kind: ResultKind
    """As the router is told."""
    error: BaseException | None
    """What the handler raised."""
    seconds: float
    """How long the handler took."""


@dataclasses.dataclass(frozen=True)
class TLS:
    """Mutual TLS, for a router on another machine. The files are read for each connection, so certificates may be renewed."""

    ca_file: str
    """The certificates of the authority that signed the router's certificate, as PEM."""
    cert_file: str
    """The certificate of this application, as PEM."""
    key_file: str
    """Its private key, as PEM."""
    server_name: str = ""
    """The name in the router's certificate; by default the host of the endpoint."""


class Options(TypedDict, total=False):
    """The keyword arguments of run, serve and Worker, besides the endpoint."""

    max_in_flight: int
    """The most unanswered events of this worker: 1 to 100000, 1000 by default. The router may have a lower bound. It also bounds
    the asyncio handlers that run at once."""
    threads: int
    """The most plain handlers that run at once, each in a thread: 1 to max_in_flight, by default 128, or max_in_flight if that is
    less. A handler that was cancelled and runs on does not count, so it holds up no other. Threads start as they are needed."""
    name: str
    """The name of this worker in the router's logs. By default the router chooses one."""
    drain_grace: float
    """How long, in seconds, handlers may continue after the worker was told to stop: at least 0, 30 by default. Then they are
    cancelled, with the cause DrainTimeout."""
    leave_group: bool
    """Makes the router leave its group when the worker stops: it hands all its keys over in order. For an application that ends
    then. False by default."""
    calls: Mapping[str, CallHandler] | None
    """The handlers of calls by their methods, in the style of the handler of events. A method has 1 to 64 of A-Z, a-z, 0-9, '.', '_'
    and '-'. All workers of a group should have the same ones, since a call goes to the worker of its key, whatever methods that has."""
    schedules: Iterable[Schedule] | None
    """Handlers that run at set times, once in the whole group, in the style of the handler of events: at most 256. All workers of a group should
    have the same ones. What the router finds wrong with them ends the worker with Refused."""
    state_max: int
    """The number of keys whose states are kept, see :meth:`ringfence.Event.state`: at least 0, 100000 by default. With 0 it always loads."""
    token_file: str | None
    """A file with the token that a router with app.token_file requires, read anew for each stream. By default the environment
    variable RINGFENCE_APP_TOKEN_FILE names it; None or an empty name: no token."""
    tls: TLS | None
    """Encrypts the connection. None by default, which suits loopback and Unix sockets alone."""
    hooks: Hooks | None
    """Functions for metrics."""
    ready: Callable[[bool], object] | None
    """Called with True when a session with the router is established and with False when it is lost, or could not be established:
    for a readiness probe. Must not block."""
    traces: bool | None
    """Whether handlers run in the trace of their event, in a span of their own, by OpenTelemetry. By default they do if
    opentelemetry-api is installed and the application has set a tracer provider. True without opentelemetry-api is refused."""
    logger: logging.Logger | None
    """The log for connections, failures of handlers and lost keys: by default that called ringfence. No key or payload is logged: the line
    about a failure, one a second at most, has the class and the place of an exception, and not its text, which ``hooks.finished`` gets. If
    the logger raises, a line on stderr says so, and the worker goes on."""


FAILURES_EVERY = 1.0
"""Seconds between two lines about failed handlers, at least."""
_FRAMES = 3
"""The innermost frames that tell the place of a failure."""


def _place_of(error: BaseException) -> str:
    """Returns the class of an exception and where it was raised, without its text."""
    while isinstance(error, GROUP):
        error = error.exceptions[0]  # the place of a group is that of its TaskGroup
    frames = [
        f"{frame.f_code.co_name} ({os.path.basename(frame.f_code.co_filename)}:{line})" for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    return type(error).__name__ + " at " * bool(frames) + " < ".join(reversed(frames[-_FRAMES:]))


class Log:
    """The application's logger, whose failures are told to stderr and go no further: streams, handlers and answers do not end with them."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._lock = threading.Lock()  # guards the fields below
        self._failures = 0  # not logged yet
        self._failures_logged = -math.inf

    def failed(self, what: str, error: BaseException) -> None:
        """Logs the failure of a handler, by its place: its text may hold parts of the event. Most of many failures are only counted."""
        now = time.monotonic()
        with self._lock:
            self._failures += 1
            if now - self._failures_logged < FAILURES_EVERY:
                return
            failures, self._failures, self._failures_logged = self._failures, 0, now
        self.warning("handler failed: %s: %s; failures since the last such line: %d", what, _place_of(error), failures)

    def info(self, text: str, *arguments: object) -> None:
        self._write(self._logger.info, text, arguments)

    def warning(self, text: str, *arguments: object) -> None:
        self._write(self._logger.warning, text, arguments)

    def error(self, text: str, *arguments: object, exc_info: BaseException | bool | None = None) -> None:
        self._write(self._logger.error, text, arguments, exc_info)

    def exception(self, text: str, *arguments: object) -> None:
        self._write(self._logger.error, text, arguments, True)

    def _write(self, write: Callable[..., object], text: str, arguments: tuple[object, ...], exc_info: BaseException | bool | None = None) -> None:
        try:
            write(text, *arguments, exc_info=exc_info, stacklevel=3)  # the line is our caller's caller's
        except Exception as failure:
            try:
                if sys.stderr is not None:
                    line = f"ringfence: the logger raised {type(failure).__name__}; it was to log: {text % arguments if arguments else text}"
                    sys.stderr.write(" ".join(line.splitlines()) + "\n")
            except Exception:  # a closed stderr, or one that writes to the same logger
                pass


@dataclasses.dataclass(frozen=True)
class Settings:
    """The options after their check."""

    endpoint: str
    target: str  # the endpoint as gRPC wants it
    max_in_flight: int
    threads: int
    name: str
    drain_grace: float
    leave_group: bool
    token_file: str | None
    tls: TLS | None
    hooks: Hooks
    ready: Callable[[bool], object] | None
    traces: bool | None
    calls: Mapping[str, CallHandler]
    schedules: Mapping[str, Schedule]  # by name
    state_max: int
    log: Log
    clock: LeaseClock

    def token(self) -> str | None:
        """Reads the token, None if there is none. Raises Unauthenticated if the file cannot be read or is empty."""
        if not self.token_file:
            return None
        try:
            with open(self.token_file, encoding="ascii") as file:
                token = file.read().strip()
        except (OSError, ValueError) as error:
            raise Unauthenticated(f"cannot read the token file: {error}") from error
        if not token:
            raise Unauthenticated(f"the token file {self.token_file} is empty: write the router's token into it")
        return token

    def metadata(self) -> tuple[tuple[str, str]] | None:
        """The metadata of a request, None if there is no token. Raises what :meth:`token` raises."""
        token = self.token()
        return (("authorization", f"Bearer {token}"),) if token else None


def check(endpoint: str | None, options: Mapping[str, Any], clock: LeaseClock | None = None) -> Settings:
    """Returns the settings. Raises ArgumentError if an option is out of range, and TypeError if there is no such option."""
    unknown = sorted(set(options) - set(Options.__annotations__))
    if unknown:
        raise TypeError(f"there is no option {', '.join(unknown)}; the options are {', '.join(sorted(Options.__annotations__))}")
    endpoint = endpoint or os.environ.get(ENDPOINT_ENV) or DEFAULT_ENDPOINT
    target = _target(endpoint)
    max_in_flight = _integer(options, "max_in_flight", MAX_IN_FLIGHT_DEFAULT, MAX_IN_FLIGHT_MAX)
    threads = _integer(options, "threads", min(THREADS_DEFAULT, max_in_flight), max_in_flight)
    grace = options.get("drain_grace", DRAIN_GRACE_DEFAULT)
    if isinstance(grace, bool) or not isinstance(grace, (int, float)) or not 0 <= grace < math.inf:
        raise ArgumentError(f"drain_grace = {grace!r}, want a number of seconds, at least 0")
    state_max = options.get("state_max", STATE_MAX_DEFAULT)
    if isinstance(state_max, bool) or not isinstance(state_max, int) or state_max < 0:
        raise ArgumentError(f"state_max = {state_max!r}, want a number of keys, at least 0")
    name = options.get("name") or ""
    if not isinstance(name, str) or not _is_unicode(name):
        raise ArgumentError(f"name = {name!r}, want a text")
    leave_group = options.get("leave_group") or False
    if not isinstance(leave_group, int):  # as a bool is
        raise ArgumentError(f"leave_group = {leave_group!r}, want True or False")
    token_file = options["token_file"] if "token_file" in options else os.environ.get(TOKEN_FILE_ENV)
    if token_file is not None and not isinstance(token_file, (str, bytes, os.PathLike)):
        raise ArgumentError(f"token_file = {token_file!r}, want the name of a file")
    log = Log(options.get("logger") or logging.getLogger("ringfence"))
    tls = options.get("tls")
    if tls is not None and not isinstance(tls, TLS):
        raise ArgumentError(f"tls = {tls!r}, want a ringfence.TLS")
    hooks = options.get("hooks") or Hooks()
    for function, called in (
        *((field.name, getattr(hooks, field.name, None)) for field in dataclasses.fields(Hooks)),
        ("ready", options.get("ready")),
    ):
        if inspect.iscoroutinefunction(called):
            raise ArgumentError(f"{function} = {called!r}, want a plain function: nothing awaits what it returns")
    if tls is None and not _stays_here(endpoint):
        log.warning("the connection to %s is not encrypted: pass tls, unless the address is of this machine", endpoint)
    return Settings(
        endpoint=endpoint,
        target=target,
        max_in_flight=max_in_flight,
        threads=threads,
        name=name,
        drain_grace=float(grace),
        leave_group=bool(leave_group),
        token_file=None if token_file is None else os.fsdecode(token_file),
        tls=tls,
        hooks=hooks,
        ready=options.get("ready"),
        traces=options.get("traces"),
        calls=dict(options.get("calls") or {}),
        schedules=by_name(options.get("schedules")),
        state_max=state_max,
        log=log,
        clock=clock or system_clock(),
    )


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _integer(options: Mapping[str, Any], name: str, default: int, most: int) -> int:
    value = options.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ArgumentError(f"{name} = {value!r}, want 1 to {most}")
    return value


def _target(endpoint: str) -> str:
    """Returns gRPC's target for host:port, unix:///path or unix:/path."""
    wrong = ArgumentError(f"endpoint {endpoint!r}: want host:port, unix:///path or unix:/path")
    if endpoint.startswith("unix:"):
        path = endpoint[len("unix:") :]
        path = path[2:] if path.startswith("//") else path
        if not path.startswith("/"):
            raise wrong
        return "unix:" + path
    host, colon, port = endpoint.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise wrong
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise wrong
    return f"dns:///{host or 'localhost'}:{port}"


def _stays_here(endpoint: str) -> bool:
    if endpoint.startswith("unix:"):
        return True
    host = endpoint.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in ("", "localhost")
