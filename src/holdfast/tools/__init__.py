"""The tools that agents call: one registry for every door.

A tool is one typed function; its name, schema, help and reply come from it. `registry` holds them, `context` says for
whom a call is made, `calling` runs one, `pair` is how an agent reaches the tools that are not in its list.
"""
