"""The front process: HTTP, admission, batching, answers."""
