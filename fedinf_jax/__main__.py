"""Starts the command: python -m fedinf_jax."""
