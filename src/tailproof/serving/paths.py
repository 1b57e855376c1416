"""The paths of the pages, which metrics must know before FastAPI is imported."""

STATIC = "/static-offline-docs/{file}"
BY_NAME = "/models/{name}"
FIXED = frozenset({"/", "/docs", "/openapi.json", "/model"})
PAGES = (*sorted(FIXED), STATIC, BY_NAME)
"""Their route templates."""
