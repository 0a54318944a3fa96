"""How every command behaves: its help, its standard output, and its errors."""

from __future__ import annotations

import errno
import inspect
import io
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, get_type_hints

import click
import typer.core
from typer.core import TyperArgument, TyperCommand
from typer.models import ArgumentInfo

from keyhole.errors import KeyholeError
from keyhole.interrupts import EXIT_CODE, INTERRUPTS
from keyhole.memory import ran_out_of_memory
from keyhole.terminal import log, reserved_stdout, say_json

RESUMABLE = {"audit", "frontier", "train", "membership", "obfuscate", "study"}
"""Commands that continue where they were stopped."""
UNUSABLE = {errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT, errno.EIO}
"""Errors of disks and folders that cannot be used."""
NO_MEMORY = (
    "memory ran out: use a smaller model or smaller images, fewer images or clients at once, or "
    "another machine"
)
USER_ERROR = 2
"""The exit code for errors that the user can correct."""


class LogLines(logging.Handler):
    """Prints the library's log on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        log(record.getMessage())


class Command(TyperCommand):
    """A command that has standard output to itself and whose summary is never cut."""

    def invoke(self, ctx: click.Context) -> Any:
        level = logging.WARNING if ctx.params.get("as_json") else logging.INFO
        with reserved_stdout(), logged_lines(level):
            return super().invoke(ctx)

    def get_short_help_str(self, limit: int = 45) -> str:
        """The first paragraph of its help, as long as it is."""
        return " ".join((self.help or "").split("\n\n")[0].split())

    def get_help(self, ctx: click.Context) -> str:
        restore_argument_help(self)
        with without_rich():
            return without_escapes(super().get_help(ctx))

    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Does nothing: typer lists the arguments already, and click 8.5 would list them again."""


@contextmanager
def logged_lines(level: int) -> Iterator[None]:
    """Prints the library's log from ``level`` on."""
    logger, handler = logging.getLogger("keyhole"), LogLines()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)


def restore_argument_help(command: click.Command) -> None:
    """Restores the help of arguments, which click 8.5 drops with typer 0.20."""
    called = inspect.unwrap(command.callback) if command.callback else None
    hints = {} if called is None else get_type_hints(called, include_extras=True)
    for parameter in command.params:
        if isinstance(parameter, TyperArgument) and not parameter.help:
            described = getattr(hints.get(str(parameter.name)), "__metadata__", ())
            texts = (each.help for each in described if isinstance(each, ArgumentInfo))
            parameter.help = next(texts, None)


@contextmanager
def without_rich() -> Iterator[None]:
    """Keeps typer from importing rich's renderers, which it uses here only to escape brackets."""
    before = getattr(typer.core, "HAS_RICH", None)  # older versions have no such switch
    typer.core.HAS_RICH = False
    try:
        yield
    finally:
        typer.core.HAS_RICH = bool(before)


def without_escapes(text: str) -> str:
    r"""Removes the escapes that some versions of typer add: ``\[default: auto]``."""
    return text.replace("\\[", "[")


def run(app: Callable[..., Any], arguments: Sequence[str]) -> int:
    """Runs the command line ``app``; returns its exit code.

    Errors that the user can correct, Ctrl-C and a lack of memory become one line on standard error
    and, with ``--json``, an object ``{"error": ...}`` on standard output. Any other exception
    keeps its traceback.
    """
    INTERRUPTS.last_words = lambda: report_interrupt("interrupted", as_json="--json" in arguments)
    with INTERRUPTS.handled():
        return call_app(app, arguments)


def call_app(app: Callable[..., Any], arguments: Sequence[str]) -> int:
    as_json = "--json" in arguments
    try:
        code = int(app(args=list(arguments), standalone_mode=False) or 0)
        if code != EXIT_CODE:
            return code
        raise click.Abort  # some versions of typer give the exit code of Ctrl-C, others raise this
    except (KeyboardInterrupt, click.Abort):
        resumable = RESUMABLE & set(arguments[:1])
        message = "interrupted: continue with the same command" if resumable else "interrupted"
        report_interrupt(message, as_json=as_json)
        return EXIT_CODE
    except KeyholeError as error:
        log(f"keyhole: {error}")
        code, message = USER_ERROR, str(error)
    except click.ClickException as error:
        for line in usage_lines(error):
            log(line)
        code, message = error.exit_code, error.format_message()
    except Exception as error:
        known = explain_machine_error(error)
        if known is None:
            if as_json:
                say_json({"error": f"{type(error).__name__}: {error}"})
            raise
        code, message = USER_ERROR, known
        log(f"keyhole: {message}")
    if as_json:
        say_json({"error": message})
    return code


def report_interrupt(message: str, *, as_json: bool) -> None:
    """Says that Ctrl-C was pressed, to people and, with ``--json``, to machines."""
    log(f"keyhole: {message}")
    if as_json:
        say_json({"error": message})


def explain_machine_error(error: Exception) -> str | None:
    """Says what to do if memory or a disk is at fault; returns None for a defect of Keyhole."""
    if ran_out_of_memory(error):
        return NO_MEMORY
    if isinstance(error, OSError) and error.errno in UNUSABLE:
        where = "a file" if error.filename is None else str(error.filename)
        return f"cannot use {where} ({error.strerror}): choose another place, or make room there"
    return None


def usage_lines(error: click.ClickException) -> list[str]:
    """Returns what click prints about an error, line by line."""
    shown = io.StringIO()
    error.show(file=shown)
    return shown.getvalue().splitlines()
