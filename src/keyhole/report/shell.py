"""What all pages share: their look, and a policy that allows no requests and no other code."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

STYLES = ("page.css", "parts.css", "print.css", "regimes.css")
SCRIPTS = ("page.js", "tables.js", "glossary.js", "sliders.js")


def fill_template(name: str, **values: Any) -> str:
    """Fills one of the templates beside this file; escapes every value."""
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(read_asset),
    )
    environment.filters["breakable"] = break_at_brackets
    style, script = ("".join(read_asset(each) for each in files) for files in (STYLES, SCRIPTS))
    return environment.get_template(name).render(
        style=style, script=script, policy=build_policy(style, script), **values
    )


def break_at_brackets(text: str) -> Markup:
    """Lets a browser break a part's name before its parameters, where there is little room.

    Args:
        text: The name, which is escaped.

    >>> print(break_at_brackets("gaussian(sigma=0.1) <b>"))
    gaussian(<wbr>sigma=0.1) &lt;b&gt;
    """
    return Markup("(<wbr>").join(text.split("("))


def read_asset(name: str) -> str:
    return (resources.files("keyhole.report") / name).read_text(encoding="utf-8")


def build_policy(style: str, script: str) -> str:
    """Returns the Content-Security-Policy: its own style and script, embedded images, no more.

    Style and script are named by their hashes, so that inline handlers, style attributes and
    requests are impossible even if something were left unescaped.
    """
    return "; ".join(
        (
            "default-src 'none'",
            "img-src data:",
            f"style-src {hash_source(style)}",
            f"script-src {hash_source(script)}",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def hash_source(text: str) -> str:
    """Returns the hash by which a policy names a text.

    >>> hash_source("")
    "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
    """
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
