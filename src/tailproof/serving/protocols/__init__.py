"""Wire formats of the answers, one file per protocol."""
