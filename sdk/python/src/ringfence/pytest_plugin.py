"""The fixture ``ringfence_router`` for pytest: a :class:`ringfence.testing.Router` for one test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ringfence.testing import Router


@pytest.fixture
def ringfence_router() -> Iterator[Router]:
    """A router in memory. At the end of the test it stops its workers, and fails the test if handlers do not end."""
    from ringfence.testing import Router  # not before a test needs it: it imports gRPC

    with Router() as router:
        yield router
