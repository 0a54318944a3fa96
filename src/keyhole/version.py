"""The version of Keyhole."""

__version__ = "0.1.0"
