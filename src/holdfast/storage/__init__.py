"""Storage of a memory: `Store` (documents, logs, records), and its engines for files and PostgreSQL."""
