"""What a user can mend."""


class UserError(RuntimeError):
    """Its message says what is wrong and what to do; the command line shows it without a traceback."""


class StoppedError(UserError):
    """A run was asked to stop, and saved itself first."""
