"""System specs and platform files: reading, checking, defaults, and the trust they need."""
