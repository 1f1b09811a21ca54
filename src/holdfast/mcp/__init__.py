"""The MCP server: tools, prompts and resources, over stdio and streamable HTTP.

`server` handles requests; `stdio` and `http` are the transports. Only the command line imports this package, because
loading the SDK takes longer than loading everything else together.
"""
