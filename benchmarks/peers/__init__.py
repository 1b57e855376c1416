"""Other model servers under the same test: one script each, its packages, and how it is asked."""
