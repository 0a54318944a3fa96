"""Reports: a table on the terminal, and one self-contained page."""

from keyhole.report.console import print_result
from keyhole.report.html import render, write

__all__ = ["print_result", "render", "write"]
