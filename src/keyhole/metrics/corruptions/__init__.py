"""Common corruptions of images, in five severities, in the manner of ImageNet-C and CIFAR-10-C.

They are ours: made anew from formulas, seeded by an explicit generator, for any image size, with
strengths near the published ones. They are not the files of those benchmarks, and errors on them
are not to be set beside published ones; between models scored here they compare fairly. Where the
benchmarks paste photos (frost) or change direction between severities (saturate), ours are
synthetic and grow one way.
"""

from keyhole.metrics.corruptions.base import SEVERITIES, Corruption, Family, Strengths
from keyhole.metrics.corruptions.blur import BLUR
from keyhole.metrics.corruptions.digital import DIGITAL
from keyhole.metrics.corruptions.noise import NOISE
from keyhole.metrics.corruptions.weather import WEATHER

CORRUPTIONS: dict[str, Corruption] = {
    corruption.name: corruption for corruption in (*NOISE, *BLUR, *WEATHER, *DIGITAL)
}


def fitting(channels: int) -> tuple[Corruption, ...]:
    """The corruptions that images of so many channels can undergo.

    >>> len(fitting(3)), len(fitting(1))
    (17, 16)
    """
    return tuple(c for c in CORRUPTIONS.values() if channels == 3 or not c.needs_colour)


__all__ = ["CORRUPTIONS", "SEVERITIES", "Corruption", "Family", "Strengths", "fitting"]
