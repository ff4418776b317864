"""Where files lie that are made once for this user and kept between runs."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """PEARL_CACHE_DIR, or the user's cache folder. It need not exist."""
    if given := os.environ.get("PEARL_CACHE_DIR"):
        return Path(given)
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("pearl", appauthor=False))
