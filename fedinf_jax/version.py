"""The version, which every workdir and report names."""

VERSION = "0.4.0"
