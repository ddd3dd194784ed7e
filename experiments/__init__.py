"""Binaries: flags in, files and tables out."""
