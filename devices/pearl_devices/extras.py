"""How a missing extra is installed, and what that downloads."""

from __future__ import annotations

DOWNLOADS = {
    "cpsat": "50 MB",
    "envpool": "40 MB",
    "fpga": "25 MB",
    "ray": "100 MB",
    "tensorboard": "20 MB",
    "train": "3 GB, torch with CUDA",
    "video": "60 MB",
    "wandb": "30 MB",
}
"""Extra → about what pip downloads if nothing of it is installed (assumed: sizes change with every
release)."""

CPU_TORCH = "pip install torch --index-url https://download.pytorch.org/whl/cpu"
"""The way to torch without CUDA: PyTorch's own index."""


def install_hint(extra: str) -> str:
    """Return the command that installs an extra, with its download."""
    return f"pip install 'pearl-toolkit[{extra}]' (downloads about {DOWNLOADS[extra]}; assumed)"
