"""The file engine: a folder of plain files, and a SQLite index of them that can be deleted at any time."""
