"""The JSON Schema of an audit's result: what ``--json`` prints and ``summary.json`` holds."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

SCHEMA_VERSION = 1
"""``schema_version`` of the results that this version writes. It grows if a key is removed or
changes its meaning, so that a reader of older results would be misled; not with new keys."""


def result_schema() -> dict[str, Any]:
    """The schema (JSON Schema, draft 2020-12) of :meth:`AuditResult.to_json`.

    >>> result_schema()["$id"]
    'urn:keyhole:result:1'
    """
    folder = resources.files("keyhole.auditing") / "schema"
    text = (folder / f"result-{SCHEMA_VERSION}.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema
