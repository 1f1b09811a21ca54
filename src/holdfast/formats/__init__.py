"""Pure text formats: Markdown, sections, logs, links, schedules, prompts, summaries.

Modules here convert between text and values. They know nothing of folders, locks or indexes.
"""
