from __future__ import annotations

import pytest

# Not by pytest_plugins: where the package is installed its entry point has registered the plugin, and pytest takes no second name for it.
from ringfence.pytest_plugin import ringfence_router

__all__ = ["ringfence_router"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--inbox-seed", type=int, default=None, help="replays one seed of the random test of the inbox")
