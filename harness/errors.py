"""The three ways in which a command ends badly; every other exception is a bug of ours."""

from __future__ import annotations


class InputError(ValueError):
    """The user's input is wrong: one message, exit code 2, before any simulation starts.

    Parameters
    ----------
    message : what is wrong and what is allowed.
    source : the file, flag or component that holds the mistake, if known.
    key : the key path in it (``network.cc.g``), if known.
    """

    def __init__(self, message: str, *, source: str = "", key: str = "") -> None:
        self.message, self.source, self.key = message, source, key
        where = ": ".join(part for part in (source, key) if part)
        super().__init__(f"{where}: {message}" if where else message)


class RunFailure(RuntimeError):
    """A simulation failed: an invariant broke, it hung, or a callback raised. Exit code 3."""


class Interrupted(RuntimeError):
    """The user stopped the run (Ctrl-C). What is done is kept. Exit code 130."""
