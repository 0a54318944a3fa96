"""The version of Keyhole."""

__version__ = "0.2.0"
