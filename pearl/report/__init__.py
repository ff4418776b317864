"""Reports of plans and runs, as terminal text, HTML and JSON."""

__all__ = [
    "bands_text",
    "compare",
    "document",
    "figures",
    "front_page",
    "html",
    "lead",
    "origin",
    "plan_page",
    "report",
    "tables",
    "terminal",
    "words",
]
