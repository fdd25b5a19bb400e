from __future__ import annotations

import io
import logging
import pathlib
import sys
from typing import Any

import pytest

import ringfence
from ringfence.errors import ArgumentError, Unauthenticated
from ringfence.options import Options, check


async def in_vain(*_: object) -> None: ...


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RINGFENCE_APP_ENDPOINT", raising=False)
    monkeypatch.delenv("RINGFENCE_APP_TOKEN_FILE", raising=False)
    settings = check(None, {})
    assert (settings.endpoint, settings.max_in_flight, settings.threads, settings.drain_grace) == ("127.0.0.1:16650", 1000, 128, 30.0)
    assert settings.token() is None
    assert check(None, {"max_in_flight": 5}).threads == 5


@pytest.mark.parametrize(
    ("endpoint", "target"),
    [
        ("127.0.0.1:16650", "dns:///127.0.0.1:16650"),
        ("localhost:1", "dns:///localhost:1"),
        ("[::1]:16650", "dns:///[::1]:16650"),
        ("unix:///run/ringfence.sock", "unix:/run/ringfence.sock"),
        ("unix:/run/ringfence.sock", "unix:/run/ringfence.sock"),
    ],
)
def test_endpoints(endpoint: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check(endpoint, {}).target == target
    monkeypatch.setenv("RINGFENCE_APP_ENDPOINT", endpoint)
    assert check(None, {}).target == target


@pytest.mark.parametrize(
    "endpoint", ["router", "router:", ":", "router:port", "router:0", "router:65536", "::1:16650", "unix:socket", "unix://socket"]
)
def test_bad_endpoints(endpoint: str) -> None:
    with pytest.raises(ArgumentError, match="want host:port"):
        check(endpoint, {})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_in_flight": 0}, "max_in_flight = 0, want 1 to 100000"),
        ({"max_in_flight": 100_001}, "max_in_flight = 100001, want 1 to 100000"),
        ({"max_in_flight": True}, "max_in_flight = True"),
        ({"threads": 0}, "threads = 0, want 1 to 1000"),
        ({"threads": 11, "max_in_flight": 10}, "threads = 11, want 1 to 10"),
        ({"drain_grace": -1}, "drain_grace = -1"),
        ({"drain_grace": float("nan")}, "drain_grace = nan"),
        ({"drain_grace": "1"}, "drain_grace = '1'"),
        ({"name": 7}, "name = 7, want a text"),
        ({"name": "\ud800"}, "name = "),
        ({"leave_group": "no"}, "leave_group = 'no', want True or False"),
        ({"token_file": 0}, "token_file = 0, want the name of a file"),
        ({"tls": "ca.pem"}, "tls = 'ca.pem', want a ringfence.TLS"),
        ({"ready": in_vain}, "ready = .*, want a plain function"),
        ({"hooks": ringfence.Hooks(window=in_vain)}, "window = .*, want a plain function"),
    ],
)
def test_bad_options(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        ringfence.Worker(lambda event: None, **options)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="no option max_inflight; the options are calls, drain_grace"):
        ringfence.Worker(lambda event: None, max_inflight=1)  # type: ignore[call-arg]
    with pytest.raises(ArgumentError, match="want a function"):
        ringfence.Worker("module:function")  # type: ignore[arg-type]


def test_every_option_is_documented() -> None:
    readme = (pathlib.Path(__file__).parent.parent / "README.md").read_text()
    missing = [name for name in Options.__annotations__ if f"`{name}`" not in readme]
    assert missing == []


def test_a_connection_that_leaves_the_machine_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        check("10.1.2.3:16650", {})
    assert "not encrypted" in caplog.text


class Broken(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise ConnectionError("the log server is down")


def test_a_broken_logger_is_told_to_stderr(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.Logger("broken")
    logger.addHandler(Broken())
    log = check("10.1.2.3:16650", {"logger": logger}).log
    assert capsys.readouterr().err.count("not encrypted") == 1
    log.warning("one %s", "line\nand another")
    assert capsys.readouterr().err == "ringfence: the logger raised ConnectionError; it was to log: one line and another\n"
    log.error("one %s", "line", exc_info=ValueError("x"))
    log.exception("%d", "no number")
    log.info("a percent sign: %")
    monkeypatch.setattr(sys, "stderr", None)
    log.warning("a line")
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    log.warning("a line")


def test_log_lines_name_their_caller(caplog: pytest.LogCaptureFixture) -> None:
    log = check(None, {}).log
    with caplog.at_level(logging.INFO):
        log.info("a %s", "line")
        log.warning("a line")
        log.error("a line", exc_info=ValueError("x"))
        try:
            raise ValueError("y")
        except ValueError:
            log.exception("a line")
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "ERROR", "ERROR"]
    assert {record.funcName for record in caplog.records} == {"test_log_lines_name_their_caller"}
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["x", "y"]


def test_the_token_file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "token"
    monkeypatch.setenv("RINGFENCE_APP_TOKEN_FILE", str(path))
    settings = check(None, {})
    with pytest.raises(Unauthenticated, match="cannot read the token file"):
        settings.token()
    path.write_text("\n")
    with pytest.raises(Unauthenticated, match="is empty"):
        settings.token()
    path.write_text(" one\n")
    assert settings.token() == "one"
    path.write_text("two")
    assert settings.token() == "two"
    assert check(None, {"token_file": None}).token() is None
