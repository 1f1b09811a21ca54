"""The MCP door: the tools, two prompts, and workspaces and states as resources, over stdio and streamable HTTP.

`server` says what is answered, in both eras of the protocol; `stdio` and `http` carry it. Only the command line
imports this package, since the SDK takes longer to load than everything else together.
"""
