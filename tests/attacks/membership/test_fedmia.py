from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from keyhole.attacks.membership.fedmia import gradient_cosines, join_tails, mean_cosine


def test_cosines_are_those_of_plain_autograd() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).eval()
    images, labels = torch.randn(3, 1, 2, 2), torch.tensor([0, 2, 1])
    changes = [{n: torch.randn_like(p) for n, p in model.named_parameters()} for _ in range(2)]
    found = gradient_cosines(model, images, labels, changes)
    for number in range(3):
        loss = F.cross_entropy(model(images[number : number + 1]), labels[number : number + 1])
        gradient = torch.autograd.grad(loss, list(model.parameters()))
        flat = torch.cat([g.flatten() for g in gradient])
        for client, change in enumerate(changes):
            delta = torch.cat([change[n].flatten() for n, _ in model.named_parameters()])
            expected = F.cosine_similarity(flat, -delta, dim=0)
            assert torch.isclose(found[client, number].float(), expected, atol=1e-5)


def test_an_image_that_stands_out_for_one_client_scores_high() -> None:
    torch.manual_seed(0)
    rounds = [0.1 * torch.randn(6, 40, dtype=torch.double) for _ in range(4)]
    for values in rounds:
        values[2, :10] += 0.3
    scores = join_tails(rounds, [2] * 4)
    assert scores[:10].min() > scores[10:].median()
    assert mean_cosine(rounds, [2] * 4)[:10].mean() > 0.2


def test_tails_stay_finite_far_out() -> None:
    values = torch.zeros(3, 1, dtype=torch.double)
    values[0] = 1.0
    assert join_tails([values], [0]).isfinite().all()
    assert join_tails([values], [0]) > 1e4
