"""The programs of README.md that are no files, and so are not run by readme.sh."""

from __future__ import annotations

import dataclasses
import pathlib
import re
import types
from typing import Any

import pytest

import ringfence
from ringfence.testing import Router

README = (pathlib.Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
BLOCKS = [text for marker, text in re.findall(r"(<!-- file: \S+ -->\n)?```python\n(.*?)```", README, re.DOTALL) if not marker]


@dataclasses.dataclass
class Order:
    cents: int


def test_the_blocks_are_found() -> None:
    assert len(BLOCKS) == 2


@pytest.mark.parametrize("text", BLOCKS)
def test_blocks_handle_events(text: str, ringfence_router: Router) -> None:
    def write(key: bytes, fence: str, result: int) -> None:
        assert (key, ringfence.Fence.parse(fence).turn > 0, result) == (b"user-7", True, 12)

    names: dict[str, Any] = {"ringfence": ringfence, "Order": Order, "compute": len, "store": types.SimpleNamespace(write=write)}
    exec(compile(text, "README.md", "exec", dont_inherit=True), names)
    ringfence_router.start(names["handle"])
    assert ringfence_router.deliver("user-7", b'{"cents": 5}').outcome().kind == "done"
