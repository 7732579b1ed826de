"""Pictures on pages, as values that one macro (``drawing.html``) writes as SVG. Each has a table that says the same."""
