"""The policy's pages: the rules in force, and the form that changes one of them."""
