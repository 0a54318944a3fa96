"""Tables and figures of Markdown files that are taken from results, and written anew from them."""

from keyhole_studies.documents.pages import find_pages, write_pages
from keyhole_studies.documents.templates import Templates

__all__ = ["Templates", "find_pages", "write_pages"]
