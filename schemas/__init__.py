"""Pydantic models of every config format, and the JSON Schema files generated from them."""
