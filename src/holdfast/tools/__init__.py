"""The tools that agents call: one registry for every interface.

A tool is one typed function; its name, schema, help and reply are derived from it. `calling` describes tools and runs
one in a context, `toolsets` lists them all and has `getTools` and `useTools`.
"""
