"""The version that the package gets."""

from __future__ import annotations

import importlib.util
import pathlib
from typing import Any

import pytest
from packaging.version import Version


def hatch_version() -> Any:
    """Returns the module, which is beside the package and not in it."""
    spec = importlib.util.spec_from_file_location("hatch_version", pathlib.Path(__file__).parent.parent / "hatch_version.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("described", "version"),
    [
        ("v1.2.3-0-gabcdef0", "1.2.3"),
        ("v1.2.3-4-gabcdef0", "1.2.3.post4"),
        ("v1.2.3-rc.1-0-gabcdef0", "1.2.3rc1"),
        ("v1.2.3-rc.1-4-gabcdef0", "1.2.3rc1.post4"),
        ("v1.2-beta2-11-gabcdef0", "1.2b2.post11"),
    ],
)
def test_versions_of_commits(described: str, version: str) -> None:
    assert str(Version(hatch_version().version_of(described))) == version


def test_versions_grow() -> None:
    described = ["v1.2.3-rc.1-0-gabc", "v1.2.3-rc.1-4-gabc", "v1.2.3-rc.2-0-gabc", "v1.2.3-0-gabc", "v1.2.3-1-gabc", "v1.2.4-rc.1-0-gabc"]
    versions = [Version(hatch_version().version_of(one)) for one in described]
    assert versions == sorted(versions)
