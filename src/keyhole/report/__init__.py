"""Reports: a table on the terminal, one self-contained page, and figures as files."""

from typing import TYPE_CHECKING

from keyhole.lazy import import_on_demand

if TYPE_CHECKING:
    from keyhole.report.annex import write_annex
    from keyhole.report.console import print_result
    from keyhole.report.details import describe_entry, list_entries
    from keyhole.report.figure_files import write_figures
    from keyhole.report.html import render, write

__all__ = [
    "describe_entry",
    "list_entries",
    "print_result",
    "render",
    "write",
    "write_annex",
    "write_figures",
]

if not TYPE_CHECKING:  # else any name would pass for one of this package
    __getattr__, __dir__ = import_on_demand(__name__)
