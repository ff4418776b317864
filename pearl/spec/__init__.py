"""System specs and platform files: reading, checking, defaults, and the trust they need."""

__all__ = [
    "catalogue",
    "distribution",
    "messages",
    "models",
    "platform_entries",
    "platform_files",
    "platform_template",
    "reading",
    "system",
    "template",
    "trust",
    "user_code",
    "yaml_reader",
]
