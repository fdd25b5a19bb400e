from __future__ import annotations

import pytest

pytest_plugins = ["ringfence.pytest_plugin"]  # installed packages get it by their entry point


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--inbox-seed", type=int, default=None, help="replays one seed of the random test of the inbox")
