"""Ask a bundle as a program for language models would, through `bpr mcp`: python mcp_client.py NAME.bpr QUESTION"""

import asyncio
import sys

from mcp import Client, StdioServerParameters


async def main(bundle: str, question: str) -> None:
    """Print what the tool `search` shows a language model."""
    async with Client(StdioServerParameters(command="bpr", args=["mcp", bundle])) as client:
        print((await client.call_tool("search", {"question": question, "k": 2})).content[0].text)


asyncio.run(main(*sys.argv[1:])) if len(sys.argv) == 3 else sys.exit(__doc__)
