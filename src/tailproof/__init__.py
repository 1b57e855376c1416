"""From a registered model to a service that proves its P99."""

__version__ = "0.1.0"
