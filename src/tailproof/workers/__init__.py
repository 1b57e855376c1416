"""The model process, its wire format and its supervisor."""
