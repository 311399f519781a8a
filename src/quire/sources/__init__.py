"""What a source of conversations is: the protocol that readers of other programs' files fulfil, and what they yield.

The readers themselves are `quire.importers` and other packages, which the entry point `quire.sources` names.
"""
