"""Tools we ship, made from the same public API as a builder's own (``from turngate import tool, Toolkit``)."""
