"""Who is a member, who is not, and which images are public: only the judge knows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from keyhole.attacks.membership import LabelledImages
from keyhole.auditing.membership_plan import MembershipPlan
from keyhole.data import ImageSet
from keyhole.errors import DoesNotFit
from keyhole.seeds import generator

PUBLIC_PER_MEMBER = 10
"""Public images per member that the attacker has, if the data set has that many."""


@dataclass(frozen=True)
class MembershipTruth:
    """Members, non-members and public images."""

    members: LabelledImages
    others: LabelledImages
    public: LabelledImages
    order: Tensor
    """The permutation of the candidates before the attacker sees them."""

    @property
    def candidates(self) -> LabelledImages:
        """Members and non-members, shuffled: the images that attackers are asked about."""
        return self.members.concatenate(self.others).take(self.order)

    def split_scores(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Splits scores of candidates into those of members and of non-members."""
        inside = self.order < len(self.members)
        return scores[inside], scores[~inside]


def draw_truth(data: ImageSet, plan: MembershipPlan, device: torch.device) -> MembershipTruth:
    """Draws members, non-members and public images; no group of images is in two of them."""
    order = torch.randperm(len(data), generator=generator(plan.seed, "membership")).tolist()
    group = list(range(len(data))) if data.groups is None else data.groups.tolist()
    first = {group[i]: place for place, i in reversed(list(enumerate(order)))}
    order.sort(key=lambda i: first[group[i]])

    def take(count: int) -> list[int]:
        nonlocal order
        taken = order[:count]
        groups = {group[i] for i in taken}
        order = [i for i in order[count:] if group[i] not in groups]
        return taken

    members, others = take(plan.members), take(plan.members)
    if len(others) < plan.members:
        raise DoesNotFit(
            f"data set {data.name!r} has {len(data)} images: too few for {plan.members} members "
            "and as many non-members: pass fewer --members"
        )
    public = take(PUBLIC_PER_MEMBER * plan.members if plan.public is None else plan.public)

    def load_images(indices: list[int]) -> LabelledImages:
        return LabelledImages(data.images(indices).to(device), data.labels[indices].to(device))

    candidates = torch.randperm(2 * plan.members, generator=generator(plan.seed, "candidates"))
    return MembershipTruth(
        load_images(members), load_images(others), load_images(public), candidates
    )
