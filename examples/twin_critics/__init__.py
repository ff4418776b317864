"""TD3 and SAC with each critic as a task of its own: see `docs/gallery.md`."""
