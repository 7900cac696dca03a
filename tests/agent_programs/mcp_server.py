"""The game as a server of the Model Context Protocol: `python mcp_server.py NUMBER`."""

import sys
from pathlib import Path

from mcp.server import MCPServer

sys.path.insert(0, str(Path(__file__).parents[1]))

from agent_programs.game import Game  # noqa: E402

server = MCPServer("game")
server.tool()(Game(int(sys.argv[1])).guess)
server.run()
