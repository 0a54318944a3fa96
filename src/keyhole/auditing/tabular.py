"""What results of audits and of membership experiments have in common: they are tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.auditing.tables import Row, to_csv, to_frame, write_if_asked

if TYPE_CHECKING:
    from pandas import DataFrame


class TabularResult(ABC):
    """A result that can be had as rows, a data frame, CSV or LaTeX."""

    @abstractmethod
    def to_rows(self, *, per_image: bool = False) -> list[Row]:
        """The result as a list of rows, each a dictionary by column.

        Args:
            per_image: Whether to return one row for each image of each attacker.
        """

    def to_frame(self, *, per_image: bool = False) -> DataFrame:
        """The rows of :meth:`to_rows` as a pandas data frame.

        Args:
            per_image: Whether to return one row for each image of each attacker.

        Raises:
            DoesNotFit: pandas is not installed.
        """
        return to_frame(self.to_rows(per_image=per_image))

    def to_csv(self, path: str | Path | None = None, *, per_image: bool = False) -> str:
        """The rows of :meth:`to_rows` as CSV; needs no pandas.

        Args:
            path: The file to write; None: only the text is returned.
            per_image: Whether to write one row for each image of each attacker.
        """
        return write_if_asked(path, to_csv(self.to_rows(per_image=per_image)))

    def to_latex(self, path: str | Path | None = None) -> str:
        """LaTeX tables of all attackers, with 95% intervals.

        Args:
            path: The file to write; None: only the text is returned.
        """
        return write_if_asked(path, self._build_latex())

    @abstractmethod
    def _build_latex(self) -> str: ...
