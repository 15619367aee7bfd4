"""The error that all programs end with when there is no result."""


class Invalid(Exception):
    """The program cannot do what it was asked to, or the result proves nothing. The text says why. Exit code 2."""
