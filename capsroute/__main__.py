"""`python -m capsroute` and the `capsroute` command."""

import sys
from io import TextIOWrapper


def main() -> None:
    """Run the command line, or say which extra it needs."""
    try:
        from .lab.cli import app
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("capsroute"):
            raise
        sys.exit(f"{error.name} is not installed: pip install 'capsroute[train]'")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # none if it is closed
            stream.reconfigure(errors="replace")  # an encoding without the letters is no reason to stop
    app()


if __name__ == "__main__":
    main()
