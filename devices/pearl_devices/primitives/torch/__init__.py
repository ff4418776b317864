"""Variants in torch: networks, losses and their gradient steps."""
