"""A federation with one bad client, and a server that finds it."""
