"""The command fedinf, and what it shares with the binaries of experiments."""
