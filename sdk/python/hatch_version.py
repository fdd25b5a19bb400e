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
            ["git", "-C", str(here), "describe", "--tags", "--match", "v[0-9]*"], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "0.0.0.dev0"
    # v1.2.3 for a tagged commit, v1.2.3-4-gabcdef for the fourth one after it
    match = re.fullmatch(r"v(\d+(?:\.\d+)*)(?:-(\d+)-g[0-9a-f]+)?", described)
    if match is None:
        return described.removeprefix("v")
    return match[1] if match[2] is None else f"{match[1]}.post{match[2]}"
