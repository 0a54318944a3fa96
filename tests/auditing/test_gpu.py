import pytest
import torch

import keyhole

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize(
    ("model", "attack", "least"),
    [("mlp", "linear", 120), ("vit-small", "patch-lstsq", 100), ("vit-small", "april", 60)],
)
def test_an_audit_on_the_gpu_reads_what_one_on_the_cpu_does(model, attack, least):
    for device in ("cpu", "cuda"):
        result = keyhole.audit(
            model=model, data="digits", attacks=[attack], victims=2, device=device
        )
        assert min(result.findings[0].metrics["psnr"].per_image) >= least


@pytest.mark.parametrize("defense", ["gaussian", "pruning", "dropout"])
def test_every_defense_works_on_the_gpu(defense):
    result = keyhole.audit(model="mlp", data="digits", defenses=[defense], victims=2, device="cuda")
    assert result.verdicts[0].status == "broken"
