"""What only the owner does: history, forget, backup, restore, transfer between memories, the shared memory."""
