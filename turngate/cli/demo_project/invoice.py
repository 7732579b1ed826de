"""Invoices. Money is in whole cents, so that nothing is lost to floating point."""


def subtotal_cents(lines: list[tuple[int, int]]) -> int:
    """Add up the lines, each a (quantity, unit price in cents) pair."""
    return sum(quantity * unit_price_cents for quantity, unit_price_cents in lines)


def total_cents(lines: list[tuple[int, int]], discount_percent: int = 0) -> int:
    """Return what the customer pays after the discount."""
    subtotal = subtotal_cents(lines)
    discount = subtotal * discount_percent // 100
    return subtotal - discount
