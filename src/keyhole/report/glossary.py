"""The words of the reports, each explained in a sentence or two."""

from __future__ import annotations

from dataclasses import dataclass

from keyhole.auditing.scoring import READ_SSIM


@dataclass(frozen=True)
class Term:
    """A word that a page explains where it is pointed at or focused, and in its glossary.

    Args:
        key: The name by which templates ask for it.
        name: The word.
        text: What it means.
    """

    key: str
    name: str
    text: str


TERMS = (
    Term(
        "setting",
        "Setting",
        "One model on one data set under one defense, at one strength. Each has its own verdict.",
    ),
    Term(
        "regime",
        "Regime",
        "What decides how much leaks besides the defense: model, images, weights, batch size, and "
        "what clients share. A verdict holds for its regime only.",
    ),
    Term(
        "honest",
        "Honest server",
        "It keeps to the protocol and looks at the updates that it receives.",
    ),
    Term(
        "malicious",
        "Malicious server",
        "It changes the model before it sends it out, so that the updates give away more.",
    ),
    Term("update", "Update", "What a client sends: a gradient, or how its weights have changed."),
    Term(
        "defense",
        "Defense",
        "What clients do so that updates give away less: to their images, the model or the update.",
    ),
    Term("naive", "Naive attacker", "Does not know that there is a defense."),
    Term("paper", "Paper attacker", "Attacks as the defense's or the attack's authors did."),
    Term(
        "adaptive",
        "Adaptive attacker",
        "Knows the defense and its parameters, and uses that. A defense that no adaptive attacker "
        "has met is not judged yet.",
    ),
    Term(
        "read",
        "Read",
        f"An image counts as read if its reconstruction reaches an SSIM of {READ_SSIM}, comes "
        "closer to the original than every attacker who saw nothing, and points to the right image "
        "in a gallery of victims and public images.",
    ),
    Term("broken", "Broken", "At least one private image was read."),
    Term(
        "not-broken",
        "Not broken",
        "None of the attacks tried read an image. That is no promise: others may.",
    ),
    Term("not-tested", "Not tested", "No attack that looks for images was run."),
    Term("not-scored", "Not scored", "The original images are not known, so nobody can tell."),
    Term(
        "psnr",
        "PSNR",
        "Peak signal-to-noise ratio in decibels: how small the errors of the pixels are. More is "
        "seen where it is high; from about 25 dB most people see the same image.",
    ),
    Term(
        "ssim",
        "SSIM",
        "Structural similarity: whether edges and shades are where they were. 1 is the same image, "
        "about 0 is none of it.",
    ),
    Term("mse", "MSE", "Mean squared error of pixels in [0, 1]. More is seen where it is low."),
    Term(
        "lpips",
        "LPIPS",
        "How different two images look to a network trained on photos. More is seen where it is "
        "low.",
    ),
    Term(
        "fft2d", "FFT2D", "Distance of two images in Fourier space. More is seen where it is low."
    ),
    Term(
        "reid",
        "Re-ID",
        "The share of reconstructions that point to the right image in a gallery, readable or not.",
    ),
    Term(
        "client",
        "Client",
        "The share of a secure sum's images that were attributed to the right client.",
    ),
    Term("labels", "Labels", "The share of the images' classes that the attacker found out."),
    Term("mmd", "MMD", "How far the dropout masks that were found are from the client's own."),
    Term("mask", "Mask MSE", "Mean squared error of the dropout masks that were found."),
    Term(
        "null",
        "Saw nothing",
        "What one scores without having seen an update: with noise, the mean public image, or the "
        "nearest public image. Who is no better has read nothing.",
    ),
    Term(
        "interval",
        "95% interval",
        "The range that the true mean lies in, as far as so few images can tell.",
    ),
)
"""All terms, in the order of the glossary."""

GLOSSARY = {term.key: term for term in TERMS}
STATUSES = {
    "broken": "broken",
    "not broken": "not-broken",
    "not tested": "not-tested",
    "not scored": "not-scored",
}
"""The term of each status of a verdict."""
