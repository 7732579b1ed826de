"""An MCP server that offers another server's tools with a gate before each call. Needs the extra ``mcp``."""

from turngate.domain.errors import MissingExtraError

try:
    import mcp  # noqa: F401 - to see that it is installed, before one of our modules fails without it
except ImportError as missing:
    raise MissingExtraError("the MCP gateway", "mcp") from missing
