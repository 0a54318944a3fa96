"""For test suites: :func:`assert_private`, and a pytest fixture of the same name."""

from typing import TYPE_CHECKING

from keyhole.lazy import import_on_demand

if TYPE_CHECKING:
    from keyhole.testing.assertion import assert_private

__all__ = ["assert_private"]

if not TYPE_CHECKING:  # else any name would pass for one of this package
    __getattr__, __dir__ = import_on_demand(__name__)
