"""Errors that the user can put right.

Each message is one line that says what is wrong and what to do; the command line prints it and
exits with 2. Anything else that is raised is a defect of Keyhole and keeps its traceback.
"""

from __future__ import annotations


class KeyholeError(Exception):
    """Base of all errors that come from what the user asked for or handed in."""


class UnknownName(KeyholeError):
    """A data set, model, defense, attack, metric or parameter of that name does not exist."""


class BadValue(KeyholeError):
    """A parameter has a value it cannot take."""


class DataMissing(KeyholeError):
    """A data set's files are not where they are looked for, or cannot be read."""


class DoesNotFit(KeyholeError):
    """A model, an image size, a defense or an attack do not go together."""


class BadUpdate(KeyholeError):
    """An update or a set of weights cannot be used: not finite, wrong shapes, not safetensors."""


class RunFolderError(KeyholeError):
    """A run folder cannot be written, read, or holds another audit."""


def one_line(error: BaseException) -> str:
    """The first line of an exception's message, cut where it is long; its type where it has none.

    >>> one_line(ValueError("bad\\nvery bad"))
    'bad'
    """
    text = str(error).strip()
    line = text.splitlines()[0] if text else type(error).__name__
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}..."


LONGEST = 400
"""Letters of another program's message that ours repeats."""
