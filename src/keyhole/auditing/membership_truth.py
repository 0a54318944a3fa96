"""Who is a member, who is not, and whose images are public: known to the judge alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from keyhole.attacks.membership import LabelledImages
from keyhole.auditing.membership_plan import MembershipPlan
from keyhole.data import ImageSet
from keyhole.errors import DoesNotFit
from keyhole.seeds import generator

PUBLIC = 10
"""Public images that the attacker has for each member, where the data set has so many."""


@dataclass(frozen=True)
class Truth:
    """Who is a member and who is not, and the images that are public; the judge's alone."""

    members: LabelledImages
    others: LabelledImages
    public: LabelledImages
    order: Tensor
    """How candidates are shuffled before the attacker sees them."""

    @property
    def candidates(self) -> LabelledImages:
        return self.members.concatenate(self.others).take(self.order)

    def apart(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of candidates as those of members and of non-members."""
        inside = self.order < len(self.members)
        return scores[inside], scores[~inside]


def drawn(data: ImageSet, plan: MembershipPlan, device: torch.device) -> Truth:
    """Members, non-members and public images by seed; none shows a part of what another shows."""
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
    public = take(PUBLIC * plan.members if plan.public is None else plan.public)

    def held(some: list[int]) -> LabelledImages:
        return LabelledImages(data.images(some).to(device), data.labels[some].to(device))

    candidates = torch.randperm(2 * plan.members, generator=generator(plan.seed, "candidates"))
    return Truth(held(members), held(others), held(public), candidates)
