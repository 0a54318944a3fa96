"""``python -m keyhole``."""

from keyhole.cli import main

main()
