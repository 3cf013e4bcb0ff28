"""The server: models over HTTP, for programs as OpenAI's API and for people as a playground."""
