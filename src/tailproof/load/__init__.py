"""The honest load test: it sends on schedule, records every request, judges itself first."""
