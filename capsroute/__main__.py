"""`python -m capsroute`."""

from .cli import app

app()
