"""What all pages share: one look, no request, and a policy against code that is not theirs."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

STYLES = ("page.css", "print.css")
SCRIPT = "page.js"


def fill_template(name: str, **values: Any) -> str:
    """A page from one of the templates beside this file; every value is escaped."""
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(text_of),
    )
    style, script = "".join(text_of(each) for each in STYLES), text_of(SCRIPT)
    return environment.get_template(name).render(
        style=style, script=script, policy=policy(style, script), **values
    )


def text_of(name: str) -> str:
    return (resources.files("keyhole.report") / name).read_text(encoding="utf-8")


def policy(style: str, script: str) -> str:
    """The page's Content-Security-Policy: its own style and script, embedded images, nothing else.

    Style and script are named by their hashes, so that neither an inline handler nor a style
    attribute nor a request is possible, even if something were left unescaped.
    """
    return "; ".join(
        (
            "default-src 'none'",
            "img-src data:",
            f"style-src {source(style)}",
            f"script-src {source(script)}",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def source(text: str) -> str:
    """A text as a policy names it.

    >>> source("")
    "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
    """
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
