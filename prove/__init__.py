"""The fault campaign: break a memory in every way we know of, and count what is lost."""
