"""Models that train side by side, each from its own first weights and on its own images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import stack_module_state

from keyhole.defenses import Defense
from keyhole.federation import LocalTraining, averaged
from keyhole.federation.together import Crowd, Member, described


def side_by_side(models: Sequence[nn.Module], members: Sequence[Member], defense: Defense) -> None:
    """Trains ``models[i]`` on the images of ``members[i]`` through all doors of ``defense``.

    The models' weights are one more tensor axis; what comes out is what each member would have
    made of its model alone, to float tolerance (dropout and augmentation draw otherwise).
    """
    sides = [m.side(model) for m, model in zip(members, models, strict=True)]

    def inputs() -> list[Tensor]:
        shown = [defense.on_images(m.images, s) for m, s in zip(members, sides, strict=True)]
        return [m.data.normalise(images) for m, images in zip(members, shown, strict=True)]

    first = inputs()
    local = [defense.on_model(model, side) for model, side in zip(models, sides, strict=True)]
    seeds = [int(torch.randint(2**62, (), generator=m.generator)) for m in members]
    crowd = crowd_of(local, members[0].training)
    crowd.train(first, [m.labels for m in members], seeds, again=inputs)
    for model, member, side, change in zip(models, members, sides, crowd.changes(), strict=True):
        update = described(change, member.training, len(member.images)).check()
        sent = model.state_dict()
        model.load_state_dict(averaged(sent, [defense.on_update(update, side)]))


def crowd_of(models: Sequence[nn.Module], training: LocalTraining) -> Crowd:
    """The networks as one, each with the weights that it has."""
    crowd = Crowd(models[0], len(models), training)
    weights, buffers = stack_module_state(list(models))
    now = {**crowd.leaves, **crowd.buffers}
    with torch.no_grad():
        for name, start in {**weights, **buffers}.items():
            now[name].copy_(start)
            crowd.before[name].copy_(start)
    return crowd
