"""Where a memory is kept: `Store` (documents, logs, records), and the engines of files and PostgreSQL behind it."""
