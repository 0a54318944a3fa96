"""The app is Flower's to import, not pytest's."""

from flower_processes import flower

__all__ = ["flower"]
collect_ignore = ["app"]
