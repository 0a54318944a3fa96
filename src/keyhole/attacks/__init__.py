"""Attacks: each reads an observation and returns what it believes it saw."""

from typing import TYPE_CHECKING

from keyhole.lazy import import_on_demand
from keyhole.registry import Registry

if TYPE_CHECKING:
    from keyhole.attacks.analytic import (
        April,
        CocktailParty,
        FeatureDecoding,
        LabelInference,
        LinearLeak,
        LoraSpan,
        PatchLeastSquares,
        Spear,
    )
    from keyhole.attacks.base import Attack, Reconstruction
    from keyhole.attacks.checkpointer import Checkpointer
    from keyhole.attacks.families import CLOSED_FORM, ITERATIVE
    from keyhole.attacks.generative.gifd import Gifd
    from keyhole.attacks.interception import Interception, UndoneInterception
    from keyhole.attacks.malicious import (
        Fishing,
        Imprint,
        ImprintWeights,
        Loki,
        PeftImprint,
        SingleOut,
        TrapWeights,
    )
    from keyhole.attacks.matching import (
        ConvolutionSpear,
        DeepLeakage,
        DiaRead,
        DropoutInversion,
        EpochMatching,
        GradInversion,
        GradViT,
        HeadInversion,
        ImprovedDeepLeakage,
        InvertingGradients,
        IterativeApril,
        Matching,
        SpearInversion,
        SurrogateInversion,
        UploadedModelInversion,
        Wiig,
    )
    from keyhole.attacks.mjp import MjpInversion, MjpSpan

__all__ = [
    "ATTACKS",
    "CLOSED_FORM",
    "ITERATIVE",
    "April",
    "Attack",
    "Checkpointer",
    "CocktailParty",
    "ConvolutionSpear",
    "DeepLeakage",
    "DiaRead",
    "DropoutInversion",
    "EpochMatching",
    "FeatureDecoding",
    "Fishing",
    "Gifd",
    "GradInversion",
    "GradViT",
    "HeadInversion",
    "Imprint",
    "ImprintWeights",
    "ImprovedDeepLeakage",
    "Interception",
    "InvertingGradients",
    "IterativeApril",
    "LabelInference",
    "LinearLeak",
    "Loki",
    "LoraSpan",
    "Matching",
    "MjpInversion",
    "MjpSpan",
    "PatchLeastSquares",
    "PeftImprint",
    "Reconstruction",
    "SingleOut",
    "Spear",
    "SpearInversion",
    "SurrogateInversion",
    "TrapWeights",
    "UndoneInterception",
    "UploadedModelInversion",
    "Wiig",
]

CLOSED_FORM_TABLE = {
    "linear": "keyhole.attacks.analytic:LinearLeak",
    "patch-lstsq": "keyhole.attacks.analytic:PatchLeastSquares",
    "spear": "keyhole.attacks.analytic:Spear",
    "cocktail-party": "keyhole.attacks.analytic:CocktailParty",
    "lora-span": "keyhole.attacks.analytic:LoraSpan",
    "mjp-span": "keyhole.attacks.mjp:MjpSpan",
    "april": "keyhole.attacks.analytic:April",
    "imprint": "keyhole.attacks.malicious:Imprint",
    "imprint-weights": "keyhole.attacks.malicious:ImprintWeights",
    "loki": "keyhole.attacks.malicious:Loki",
    "peft-imprint": "keyhole.attacks.malicious:PeftImprint",
    "trap-weights": "keyhole.attacks.malicious:TrapWeights",
    "labels": "keyhole.attacks.analytic:LabelInference",
    "intercept": "keyhole.attacks.interception:Interception",
    "intercept-undo": "keyhole.attacks.interception:UndoneInterception",
}
ITERATIVE_TABLE = {
    "dlg": "keyhole.attacks.matching:DeepLeakage",
    "idlg": "keyhole.attacks.matching:ImprovedDeepLeakage",
    "ig": "keyhole.attacks.matching:InvertingGradients",
    "ig-uploaded": "keyhole.attacks.matching:UploadedModelInversion",
    "wiig": "keyhole.attacks.matching:Wiig",
    "dia": "keyhole.attacks.matching:DropoutInversion",
    "dia-read": "keyhole.attacks.matching:DiaRead",
    "april-iterative": "keyhole.attacks.matching:IterativeApril",
    "gradvit": "keyhole.attacks.matching:GradViT",
    "gradinversion": "keyhole.attacks.matching:GradInversion",
    "gifd": "keyhole.attacks.generative.gifd:Gifd",
    "spear-ig": "keyhole.attacks.matching:SpearInversion",
    "head-ig": "keyhole.attacks.matching:HeadInversion",
    "sme": "keyhole.attacks.matching:SurrogateInversion",
    "epoch-matching": "keyhole.attacks.matching:EpochMatching",
    "mjp-ig": "keyhole.attacks.mjp:MjpInversion",
    "fishing": "keyhole.attacks.malicious:Fishing",
    "single-out": "keyhole.attacks.malicious:SingleOut",
}

APPROXIMATE_TABLE = {
    "decode": "keyhole.attacks.analytic:FeatureDecoding",
    "conv-spear": "keyhole.attacks.matching:ConvolutionSpear",
}
"""Attacks that are run only when asked for: what they read is blurred, or takes minutes."""

ATTACKS: Registry["Attack"] = Registry(
    "attack",
    CLOSED_FORM_TABLE | ITERATIVE_TABLE | APPROXIMATE_TABLE,
    base="keyhole.attacks.base:Attack",
    group="keyhole.attacks",
)

if not TYPE_CHECKING:  # else any name would pass for one of this package
    __getattr__, __dir__ = import_on_demand(__name__)
