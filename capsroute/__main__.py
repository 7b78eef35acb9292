"""`python -m capsroute` and the `capsroute` command."""

import sys


def main() -> None:
    """Run the command line, or say which extra it needs."""
    try:
        from .lab.cli import app
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("capsroute"):
            raise
        sys.exit(f"{error.name} is not installed: pip install 'capsroute[train]'")
    app()


if __name__ == "__main__":
    main()
