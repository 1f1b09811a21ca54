"""How records stand in files: Markdown with front matter, dated sections, logs of JSON lines.

Each module turns bytes into records and records into bytes, and knows nothing of folders, locks or indexes.
"""
