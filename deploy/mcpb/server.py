"""Start the MCP server in the bundle for Claude Desktop."""

import sys

from holdfast.cli.main import main

sys.argv[1:] = ["mcp"]
main()
