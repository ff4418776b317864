"""Running a plan: lanes that execute bound kernels, and the clock that times them."""

__all__ = ["child_process", "child_program", "clock", "cpu_wait", "processes"]
