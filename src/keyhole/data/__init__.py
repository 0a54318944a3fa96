"""Images and labels: built-in sets, files under a data folder, any folder of images."""

from typing import TYPE_CHECKING

from keyhole.lazy import import_on_demand

if TYPE_CHECKING:
    from keyhole.data.image_set import ImageSet, Size, denormalise, normalise, parse_size
    from keyhole.data.loading import load
    from keyhole.data.normalisation import Normalisation
    from keyhole.data.sources import SOURCES, Source

__all__ = [
    "SOURCES",
    "ImageSet",
    "Normalisation",
    "Size",
    "Source",
    "denormalise",
    "load",
    "normalise",
    "parse_size",
]

if not TYPE_CHECKING:  # else any name would pass for one of this package
    __getattr__, __dir__ = import_on_demand(__name__)
