"""Callbacks that ship: stopping rules, loggers, videos and a progress bar. One file each."""

__all__ = ["csv_log", "patience", "stop_at_return", "tensorboard", "video", "wandb_log"]
