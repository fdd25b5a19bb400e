"""The version of this package."""

from __future__ import annotations

import importlib.metadata

try:
    VERSION = importlib.metadata.version("ringfence")
except importlib.metadata.PackageNotFoundError:  # used from a source tree
    VERSION = "0"

SDK = f"ringfence-python/{VERSION}"
"""The name of this SDK in the router's logs."""
