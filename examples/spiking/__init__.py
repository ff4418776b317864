"""A spiking policy, and a machine of many tiles for it: see `docs/gallery.md`."""
