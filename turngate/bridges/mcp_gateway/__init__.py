"""An MCP server that puts another one's tools behind the gates. Every module of it needs the extra ``mcp``."""

from turngate.domain.errors import MissingExtraError

try:
    import mcp  # noqa: F401 - to see that it is there, before one of our modules fails for want of it
except ImportError as missing:
    raise MissingExtraError("the MCP gateway", "mcp") from missing
