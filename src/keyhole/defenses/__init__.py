"""Defenses: one file each; a defense has four doors and uses one or two."""

from typing import TYPE_CHECKING

from keyhole.lazy import import_on_demand
from keyhole.registry import Registry

if TYPE_CHECKING:
    from keyhole.defenses.agp import Agp
    from keyhole.defenses.ats import Ats
    from keyhole.defenses.base import ClientSide, Defense, DefenseSpec, Telemetry
    from keyhole.defenses.calibrated import (
        CalibratedNoise,
        expected_noise_norm,
        keep_parameters,
        match_budget,
        match_noise_norm,
    )
    from keyhole.defenses.capabilities import (
        AugmentedBatch,
        BatchChange,
        BlockShuffle,
        Capability,
        HiddenPositions,
        ImageChange,
        Interval,
        MixedBatch,
        PixelNoise,
        Translation,
    )
    from keyhole.defenses.censor import Censor
    from keyhole.defenses.csvar import Csvar
    from keyhole.defenses.dp import Dp
    from keyhole.defenses.dpsgd import DpSgd
    from keyhole.defenses.dropout import Dropout
    from keyhole.defenses.gaussian import Gaussian
    from keyhole.defenses.graddefense import GradDefense
    from keyhole.defenses.half import Half
    from keyhole.defenses.image_noise import ImageNoise
    from keyhole.defenses.instahide import InstaHide
    from keyhole.defenses.mixup import Mixup
    from keyhole.defenses.mjp import Mjp
    from keyhole.defenses.noise_model import Noise, uniform_noise
    from keyhole.defenses.none import NoDefense
    from keyhole.defenses.oasis import Oasis
    from keyhole.defenses.precode import Precode
    from keyhole.defenses.pruning import Pruning
    from keyhole.defenses.quantise import Quantise
    from keyhole.defenses.regions import (
        compute_region_variances,
        find_sensitive_regions,
        region_side,
        split_into_zones,
    )
    from keyhole.defenses.signsgd import SignSgd
    from keyhole.defenses.soteria import Soteria
    from keyhole.defenses.tip import Tip
    from keyhole.defenses.topk import TopK

__all__ = [
    "DEFENSES",
    "Agp",
    "Ats",
    "AugmentedBatch",
    "BatchChange",
    "BlockShuffle",
    "CalibratedNoise",
    "Capability",
    "Censor",
    "ClientSide",
    "Csvar",
    "Defense",
    "DefenseSpec",
    "Dp",
    "DpSgd",
    "Dropout",
    "Gaussian",
    "GradDefense",
    "Half",
    "HiddenPositions",
    "ImageChange",
    "ImageNoise",
    "InstaHide",
    "Interval",
    "MixedBatch",
    "Mixup",
    "Mjp",
    "NoDefense",
    "Noise",
    "Oasis",
    "PixelNoise",
    "Precode",
    "Pruning",
    "Quantise",
    "SignSgd",
    "Soteria",
    "Telemetry",
    "Tip",
    "TopK",
    "Translation",
    "compute_region_variances",
    "expected_noise_norm",
    "find_sensitive_regions",
    "keep_parameters",
    "match_budget",
    "match_noise_norm",
    "region_side",
    "split_into_zones",
    "uniform_noise",
]

DEFENSES: Registry["Defense"] = Registry(
    "defense",
    {
        "none": "keyhole.defenses.none:NoDefense",
        "gaussian": "keyhole.defenses.gaussian:Gaussian",
        "pruning": "keyhole.defenses.pruning:Pruning",
        "topk": "keyhole.defenses.topk:TopK",
        "quantise": "keyhole.defenses.quantise:Quantise",
        "signsgd": "keyhole.defenses.signsgd:SignSgd",
        "half": "keyhole.defenses.half:Half",
        "dropout": "keyhole.defenses.dropout:Dropout",
        "dpsgd": "keyhole.defenses.dpsgd:DpSgd",
        "mjp": "keyhole.defenses.mjp:Mjp",
        "csvar": "keyhole.defenses.csvar:Csvar",
        "image-noise": "keyhole.defenses.image_noise:ImageNoise",
        "tip": "keyhole.defenses.tip:Tip",
        "dp": "keyhole.defenses.dp:Dp",
        "agp": "keyhole.defenses.agp:Agp",
        "soteria": "keyhole.defenses.soteria:Soteria",
        "precode": "keyhole.defenses.precode:Precode",
        "ats": "keyhole.defenses.ats:Ats",
        "mixup": "keyhole.defenses.mixup:Mixup",
        "instahide": "keyhole.defenses.instahide:InstaHide",
        "oasis": "keyhole.defenses.oasis:Oasis",
        "censor": "keyhole.defenses.censor:Censor",
        "graddefense": "keyhole.defenses.graddefense:GradDefense",
    },
    base="keyhole.defenses.base:Defense",
    group="keyhole.defenses",
)

if not TYPE_CHECKING:  # else any name would pass for one of this package
    __getattr__, __dir__ = import_on_demand(__name__)
