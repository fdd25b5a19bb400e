"""What handlers raise, how they are cancelled, and the failures between the SDK and the router."""

from __future__ import annotations

import builtins
import datetime
import math
from typing import Any, Literal

GROUP: Any = getattr(builtins, "BaseExceptionGroup", ())
"""The class of groups of exceptions, which Python has from 3.11 on."""


def _made_again(of: type[BaseException], args: tuple[Any, ...], fields: dict[str, Any]) -> BaseException:
    """Returns an exception that another process has raised. Its constructor is not called: that takes other arguments than ``args``."""
    error = of.__new__(of, *args)
    error.__dict__.update(fields)
    return error


class Reject(Exception):
    """Raised by a handler: the event will never succeed. It goes to the dead letter topic, with the text as a property.

    Without arguments the text is that of the cause, as in ``raise Reject from error``.
    """


class RetryAfter(Exception):
    """Raised by a handler: the event failed, and should be retried after ``delay``, in seconds. The key waits meanwhile.

    Any other exception means a retry too, after the router's own back-off; so does a delay of 0 or less. The router may bound the
    delay (``retry.after_max``). Raises ValueError if the delay is not a finite number.
    """

    def __init__(self, delay: float | datetime.timedelta, reason: object = "") -> None:
        super().__init__(reason)
        seconds = delay.total_seconds() if isinstance(delay, datetime.timedelta) else float(delay)
        if not math.isfinite(seconds):
            raise ValueError(f"RetryAfter: delay = {delay}, want a finite number of seconds")
        self.delay: float = max(seconds, 0.0)

    def __reduce__(self) -> tuple[Any, ...]:  # it may be raised in a pool of processes
        return _made_again, (type(self), self.args, self.__dict__)


class CallFailure(Exception):
    """Raised by the handler of a call: the call failed, and the caller gets ``code`` with the text.

    The code is yours, up to 64 bytes; a longer one is dropped. Any other exception fails the call too, with an empty code. Without
    ``reason`` the text is that of the cause, as in ``raise CallFailure("no_stock") from error``.
    """

    def __init__(self, code: str, reason: object = "") -> None:
        super().__init__(reason)
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:  # it may be raised in a pool of processes
        return _made_again, (type(self), self.args, self.__dict__)


class Cancelled(BaseException):
    """Raised by :meth:`Event.check`: stop at once, and write nothing.

    It is no Exception, as asyncio.CancelledError is none, so that ``except Exception`` around a write does not swallow it.
    """


class KeyLost(Cancelled):
    """The lease on the key has ended. Another handler may work on the key now, on another machine."""


class HandlerTimeout(Cancelled):
    """The handler took longer than the router's ``handler.timeout`` without :meth:`Event.progress`, and it counts as a failure.

    Or an operator has skipped the event (``router skip``): it goes to the dead letter topic, unless the handler returns.
    """


class CallerGone(Cancelled):
    """The caller is no longer waiting for the call that the handler answers. The handler's return value is discarded."""


class DrainTimeout(Cancelled):
    """The handler did not end within the drain grace.

    A handler that has done nothing yet may raise it once its worker was told to stop: the event goes back to the router at once, and it
    counts as no failure.
    """


CallOutcome = Literal["failed", "not_run", "unknown", "done_before"]
"""What became of a call without a reply: see :attr:`CallError.outcome`."""


class Error(Exception):
    """A failure that the SDK reports, as opposed to a failure of a handler."""


class ArgumentError(Error, ValueError):
    """An argument or option is out of range; the text begins with its name."""


class CallError(Error):
    """Raised by :meth:`Lane.invoke`: the call has no reply."""

    def __init__(self, outcome: CallOutcome, code: str = "", text: str = "", retry_after: float = 0.0) -> None:
        super().__init__(f"{_OUTCOMES[outcome]}{code and f' ({code})'}{text and f': {text}'}")
        self.outcome: CallOutcome = outcome  # without the type pyright takes it for any text
        """failed: the handler raised. not_run: the call has not run, and never will; it can be repeated. unknown: it may have run, and may
        still run until its timeout; only a call with an id can be repeated safely. done_before: a call with its id was answered before,
        and its reply is no longer known."""
        self.code = code
        """failed: the code of the handler's :class:`CallFailure`, else empty. not_run: timeout, overloaded, no_handler, cycle, parked,
        too_large, leaving or unreachable; empty if the router refused the request."""
        self.text = text
        """Why, in words."""
        self.retry_after = retry_after
        """not_run: seconds after which to call again; 0: as you like."""

    def __reduce__(self) -> tuple[type[CallError], tuple[CallOutcome, str, str, float]]:  # by default it would be made again of its text alone
        return type(self), (self.outcome, self.code, self.text, self.retry_after)


_OUTCOMES = {
    "failed": "the call failed",
    "not_run": "the call has not run",
    "unknown": "the call may have run",
    "done_before": "the call was already done",
}


class NotReserved(Error):
    """Raised by :meth:`Lane.reserve`: the key was not reserved."""

    def __init__(self, code: str, text: str = "", retry_after: float = 0.0) -> None:
        super().__init__(f"the key is not reserved{code and f' ({code})'}{text and f': {text}'}")
        self.code = code
        """timeout: it was not free in time. Else overloaded, cycle, parked, too_large, leaving, unreachable, not_exclusive (the routers'
        ownership.mode is gossip), not_covered (the group cannot promise the ttl), or lost (granted, and over before it could begin); empty if the
        router refused the request."""
        self.text = text
        """Why, in words."""
        self.retry_after = retry_after
        """Seconds after which to ask again; 0: as you like."""

    def __reduce__(self) -> tuple[type[NotReserved], tuple[str, str, float]]:
        return type(self), (self.code, self.text, self.retry_after)


class NotSent(Error):
    """The event was not published. It can be sent again. Raised by :meth:`Lane.send`, and what fails a handler whose timers are not published."""

    def __init__(self, text: str = "") -> None:
        super().__init__(f"the event was not published{text and f': {text}'}")
        self.text = text
        """Why, in words."""

    def __reduce__(self) -> tuple[type[NotSent], tuple[str]]:
        return type(self), (self.text,)


class MaybeSent(Error):
    """The event may have been published. Only one with an id can be sent again safely. Raised as :class:`NotSent` is."""

    def __init__(self, text: str = "") -> None:
        super().__init__(f"the event may have been published{text and f': {text}'}")
        self.text = text
        """Why, in words."""

    def __reduce__(self) -> tuple[type[MaybeSent], tuple[str]]:
        return type(self), (self.text,)


class HandlersStillRunning(Error):
    """Handlers ignored even the cancellation after the drain grace."""


class SessionError(Error):
    """A session with the router ended, or could not begin. The SDK reconnects, unless the router :class:`Refused` a schedule; the log and
    :attr:`Hooks.disconnected` report it."""


class Unreachable(SessionError):
    """There is no router at the endpoint, TLS failed, or the router is stopping."""


class Unauthenticated(SessionError):
    """The token file cannot be read, or the router refuses its token."""


class VersionMismatch(SessionError):
    """The router and this SDK have no protocol version in common."""


class TooManyWorkers(SessionError):
    """The router already serves ``app.workers_max`` workers."""


class Refused(SessionError):
    """The router refused the session for another reason. If a schedule is wrong, its text has the name, and the worker ends with this error."""


class GoAway(SessionError):
    """The router ended the session in order, because it is stopping."""


class Silent(SessionError):
    """The router sent nothing for 10 s, though it answers Pings every 0.2 s; it, its machine or the network may be down."""


class Broken(SessionError):
    """An established session broke."""
