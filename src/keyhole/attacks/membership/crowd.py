"""Models that train side by side, each from its own first weights and on its own images."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import stack_module_state
from torch.nn.utils.rnn import pad_sequence

from keyhole.defenses import ClientSide, Defense
from keyhole.federation import LocalTraining, averaged
from keyhole.federation.together import Crowd, Member
from keyhole.seeds import generator, seeded_globally
from keyhole.update import Update


def side_by_side(models: Sequence[nn.Module], members: Sequence[Member], defense: Defense) -> None:
    """Trains ``models[i]`` on the images of ``members[i]`` through all doors of ``defense``.

    The models' weights are one more tensor axis; what comes out is what each member would have
    made of its model alone, to float tolerance (dropout and augmentation draw otherwise).
    """
    sides = [
        ClientSide(
            m.generator,
            model,
            m.images,
            m.labels,
            memory=m.memory,
            normalise=m.data.normalise,
        )
        for m, model in zip(members, models, strict=True)
    ]

    def inputs() -> list[Tensor]:
        shown = [defense.on_images(m.images, s) for m, s in zip(members, sides, strict=True)]
        return [m.data.normalise(images) for m, images in zip(members, shown, strict=True)]

    first = inputs()
    local = [defense.on_model(model, side) for model, side in zip(models, sides, strict=True)]
    seeds = [int(torch.randint(2**62, (), generator=m.generator)) for m in members]
    crowd = crowd_of(local, members[0].training)
    run(crowd, first, members, seeds, again=inputs)
    for model, member, side, change in zip(models, members, sides, crowd.changes(), strict=True):
        update = described(change, member).check()
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


def run(
    crowd: Crowd,
    inputs: list[Tensor],
    members: Sequence[Member],
    seeds: Sequence[int],
    again: Callable[[], list[Tensor]],
) -> None:
    """All steps of all members; batches are drawn as each would draw them alone."""
    training = members[0].training
    draws = [
        training.batches(len(m.images), generator(seed, "batches"))
        for m, seed in zip(members, seeds, strict=True)
    ]
    labels = [m.labels for m in members]
    epoch = 0
    with seeded_globally(seeds[0]):
        for chosen in zip(*draws, strict=True):
            now, batches = chosen[0][0], [indices for _, indices in chosen]
            if now > epoch:
                inputs = again()
            epoch = now
            crowd.step(
                pad_sequence([x[b.to(x.device)] for x, b in zip(inputs, batches, strict=True)]),
                pad_sequence([y[b.to(y.device)] for y, b in zip(labels, batches, strict=True)]),
                [len(batch) for batch in batches],
            )


def described(change: dict[str, Tensor], member: Member) -> Update:
    """A member's change of weights, with how it came about."""
    training, count = member.training, len(member.images)
    assert training.lr is not None
    return Update(
        change,
        steps=training.steps_of(count),
        lr=training.lr,
        batch_size=training.local_batch(count),
        examples=count,
    )
