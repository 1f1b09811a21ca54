"""Commands for the owner only: history, forget, backup, restore, transfer between memories, the shared memory."""
