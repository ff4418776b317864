"""The protocol of a plan: order of firings in a lane, tokens and slots between lanes, recovery."""
