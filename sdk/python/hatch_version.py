"""The version of the package: RINGFENCE_VERSION, or that of the source distribution, or the newest git tag."""

import os
import pathlib
import re
import subprocess

here = pathlib.Path(__file__).parent


def version() -> str:
    if os.environ.get("RINGFENCE_VERSION"):
        return os.environ["RINGFENCE_VERSION"].removeprefix("v")
    info = here / "PKG-INFO"  # in a source distribution
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("Version: "):
                return line.removeprefix("Version: ")
    try:
        described = subprocess.run(
            ["git", "-C", str(here), "describe", "--tags", "--long", "--match", "v[0-9]*"], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "0.0.0.dev0"
    return version_of(described)


def version_of(described: str) -> str:
    """Returns the version of a commit as git describes it: v1.2.3-0-gabcdef has the tag v1.2.3, v1.2.3-rc.1-4-gabcdef is the fourth after its."""
    match = re.fullmatch(r"v(.+)-(\d+)-g[0-9a-f]+", described)
    if match is None:
        raise ValueError(f"git describe says {described!r}, want TAG-NUMBER-gCOMMIT")
    return match[1] if match[2] == "0" else f"{match[1]}.post{match[2]}"
