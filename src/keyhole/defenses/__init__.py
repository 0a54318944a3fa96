"""Defenses: one file each; a defense has four doors and uses one or two."""

from typing import TYPE_CHECKING

from keyhole.defenses.defense_registry import DefenseRegistry
from keyhole.lazy import import_on_demand

if TYPE_CHECKING:
    from keyhole.defenses.acted import Acted, DefenseCheck, check_defense
    from keyhole.defenses.agp import Agp
    from keyhole.defenses.ats import Ats
    from keyhole.defenses.base import ClientSide, Defense, DefenseSpec, Telemetry, uses_door
    from keyhole.defenses.budget import Budget, compute_gaussian_epsilon
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
        ChosenSteps,
        HiddenPositions,
        ImageChange,
        Interval,
        MixedBatch,
        PixelNoise,
    )
    from keyhole.defenses.censor import Censor
    from keyhole.defenses.composition import Composition
    from keyhole.defenses.csvar import Csvar
    from keyhole.defenses.dp import Dp
    from keyhole.defenses.dpsgd import DpSgd
    from keyhole.defenses.dropout import Dropout
    from keyhole.defenses.flower_clipping import FlowerClipping
    from keyhole.defenses.flower_local_dp import FlowerLocalDp
    from keyhole.defenses.gaussian import Gaussian
    from keyhole.defenses.graddefense import GradDefense
    from keyhole.defenses.half import Half
    from keyhole.defenses.image_noise import ImageNoise
    from keyhole.defenses.image_steps import ImageStep
    from keyhole.defenses.instahide import InstaHide
    from keyhole.defenses.mixup import Mixup
    from keyhole.defenses.mjp import Mjp
    from keyhole.defenses.noise_model import Noise, uniform_noise
    from keyhole.defenses.noise_trace import NoiseTrace
    from keyhole.defenses.none import NoDefense
    from keyhole.defenses.oasis import Oasis
    from keyhole.defenses.percentile_privacy import PercentilePrivacy
    from keyhole.defenses.precode import Precode
    from keyhole.defenses.pruning import Pruning
    from keyhole.defenses.quantise import Quantise
    from keyhole.defenses.regions import (
        compute_region_variances,
        find_sensitive_regions,
        region_side,
        split_into_zones,
    )
    from keyhole.defenses.share import Share
    from keyhole.defenses.signsgd import SignSgd
    from keyhole.defenses.soteria import Soteria
    from keyhole.defenses.svt import Svt
    from keyhole.defenses.tip import Tip
    from keyhole.defenses.topk import TopK
    from keyhole.defenses.traces import (
        BoundTrace,
        LevelsTrace,
        NormTrace,
        PrecisionTrace,
        Sighting,
        Trace,
        TraceCheck,
        ZerosTrace,
    )

__all__ = [
    "DEFENSES",
    "Acted",
    "Agp",
    "Ats",
    "AugmentedBatch",
    "BatchChange",
    "BlockShuffle",
    "BoundTrace",
    "Budget",
    "CalibratedNoise",
    "Capability",
    "Censor",
    "ChosenSteps",
    "ClientSide",
    "Composition",
    "Csvar",
    "Defense",
    "DefenseCheck",
    "DefenseSpec",
    "Dp",
    "DpSgd",
    "Dropout",
    "FlowerClipping",
    "FlowerLocalDp",
    "Gaussian",
    "GradDefense",
    "Half",
    "HiddenPositions",
    "ImageChange",
    "ImageNoise",
    "ImageStep",
    "InstaHide",
    "Interval",
    "LevelsTrace",
    "MixedBatch",
    "Mixup",
    "Mjp",
    "NoDefense",
    "Noise",
    "NoiseTrace",
    "NormTrace",
    "Oasis",
    "PercentilePrivacy",
    "PixelNoise",
    "PrecisionTrace",
    "Precode",
    "Pruning",
    "Quantise",
    "Share",
    "Sighting",
    "SignSgd",
    "Soteria",
    "Svt",
    "Telemetry",
    "Tip",
    "TopK",
    "Trace",
    "TraceCheck",
    "ZerosTrace",
    "check_defense",
    "compute_gaussian_epsilon",
    "compute_region_variances",
    "expected_noise_norm",
    "find_sensitive_regions",
    "keep_parameters",
    "match_budget",
    "match_noise_norm",
    "region_side",
    "split_into_zones",
    "uniform_noise",
    "uses_door",
]

DEFENSES: DefenseRegistry = DefenseRegistry(
    "defense",
    {
        "none": "keyhole.defenses.none:NoDefense",
        "gaussian": "keyhole.defenses.gaussian:Gaussian",
        "pruning": "keyhole.defenses.pruning:Pruning",
        "topk": "keyhole.defenses.topk:TopK",
        "quantise": "keyhole.defenses.quantise:Quantise",
        "signsgd": "keyhole.defenses.signsgd:SignSgd",
        "half": "keyhole.defenses.half:Half",
        "percentile-privacy": "keyhole.defenses.percentile_privacy:PercentilePrivacy",
        "svt": "keyhole.defenses.svt:Svt",
        "share": "keyhole.defenses.share:Share",
        "flower-local-dp": "keyhole.defenses.flower_local_dp:FlowerLocalDp",
        "flower-clipping": "keyhole.defenses.flower_clipping:FlowerClipping",
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
