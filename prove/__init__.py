"""The fault campaigns: inject faults of every known sort into a memory, and count the losses."""
