"""Flower: defenses as client mods, and strategies that capture what the server sees.

The only package that imports ``flwr`` (``pip install 'keyhole[flower]'``). On the client::

    app = ClientApp(mods=[as_mod(Gaussian(sigma=1e-3))])

    @app.train()
    def train(message, context):
        model = protect_model(model)          # for defenses that act on the model,
        images = protect_images(images)       # on images, or on every step's gradient
        ...

A defense that calibrates its noise to the training, or looks at the client's own images (``tip``,
``dp``, ``agp``), must be told about them in the training function as well::

        tell_defense(model, images, labels, steps=32, lr=0.001, batch_size=32, normalise=normalise)

``train_locally`` makes all of these calls. And on the server::

    strategy = curious(FedAvg)(capture="captured", fraction_train=1.0)
"""

from __future__ import annotations

try:
    import flwr
except ImportError as error:
    raise ImportError("Flower is not installed: pip install 'keyhole[flower]'") from error

from keyhole.federation.flower.active_defense import (
    protect_images,
    protect_model,
    protect_step,
    tell_defense,
    train_locally,
)
from keyhole.federation.flower.downloads import before_training
from keyhole.federation.flower.messages import CallNext, Mod
from keyhole.federation.flower.mods import as_mod, before_upload
from keyhole.federation.flower.server import curious

del flwr

__all__ = [
    "CallNext",
    "Mod",
    "as_mod",
    "before_training",
    "before_upload",
    "curious",
    "protect_images",
    "protect_model",
    "protect_step",
    "tell_defense",
    "train_locally",
]
