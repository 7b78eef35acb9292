"""Environment variables that are set for a while."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def set_environment(**values: str) -> Iterator[None]:
    """Set environment variables, and restore them at the end."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
