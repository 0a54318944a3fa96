"""Errors that the user can correct.

Each message is one line that says what is wrong and what to do. The command line prints it and
exits with code 2. Any other exception is a defect of Keyhole and keeps its traceback.
"""

from __future__ import annotations

__all__ = [
    "BadUpdate",
    "BadValue",
    "DataMissing",
    "DoesNotFit",
    "KeyholeError",
    "RunFolderError",
    "UnknownName",
    "one_line",
]

LONGEST = 400
"""Letters of another program's message that an error of Keyhole repeats."""


class KeyholeError(Exception):
    """The base of all errors that are due to what the user asked for or passed in."""


class UnknownName(KeyholeError):
    """A data set, model, defense, attack, metric or parameter of that name does not exist."""


class BadValue(KeyholeError):
    """A parameter has a value that it cannot have."""


class DataMissing(KeyholeError):
    """The files of a data set are missing or cannot be read."""


class DoesNotFit(KeyholeError):
    """A model, an image size, a defense and an attack do not fit together."""


class BadUpdate(KeyholeError):
    """An update or a set of weights cannot be used: not finite, wrong shapes, not safetensors."""


class RunFolderError(KeyholeError):
    """A run folder cannot be read or written, or holds another run."""


def one_line(error: BaseException) -> str:
    """Returns the first line of an exception's message, cut where it is long.

    Args:
        error: The exception; one without a message is named by its type.

    >>> one_line(ValueError("bad\\nvery bad"))
    'bad'
    """
    text = str(error).strip()
    line = text.splitlines()[0] if text else type(error).__name__
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}..."
