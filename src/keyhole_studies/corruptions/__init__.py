"""Common corruptions of images, in five severities, in the manner of ImageNet-C and CIFAR-10-C.

They are our own: computed from formulas, seeded by an explicit generator, for any image size, with
strengths near the published ones. They are not the files of those benchmarks: errors on them cannot
be compared with published ones, but models scored here can be compared with each other. Where the
benchmarks paste photos (frost) or change direction between severities (saturate), ours are
synthetic and grow in one direction.
"""

from keyhole_studies.corruptions.base import SEVERITIES, Corruption, Family, Strengths
from keyhole_studies.corruptions.blur import BLUR
from keyhole_studies.corruptions.digital import DIGITAL
from keyhole_studies.corruptions.noise import NOISE
from keyhole_studies.corruptions.weather import WEATHER

CORRUPTIONS: dict[str, Corruption] = {
    corruption.name: corruption for corruption in (*NOISE, *BLUR, *WEATHER, *DIGITAL)
}


__all__ = ["CORRUPTIONS", "SEVERITIES", "Corruption", "Family", "Strengths"]
