"""The HTTP server: OpenAI's endpoints over the async engine. Needs the `server` extra."""
