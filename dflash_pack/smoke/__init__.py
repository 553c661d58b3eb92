"""The real decode: a request, a child process that runs vLLM, and what was measured there."""
