"""What policy rules need from outside the pure domain: a shell parser and the file system.

``turngate.domain`` defines the rules and the facts they look at; this package finds the facts. It decides nothing.
"""
