"""A scheduler that PEARL trains: see `docs/gallery.md`."""
