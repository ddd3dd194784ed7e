"""Says which command lines of our binaries do not parse; trains nothing.

A JSON list of lists of arguments comes in, each with the module first; a JSON
list of pairs goes out, line and error. Every line is parsed in a copy of this
process, since flags are defined once per process.
"""

import contextlib
import io
import json
import os
import runpy
import sys
import tempfile
import warnings

# Once for all copies; neither defines a flag.
from ml_collections import config_flags as config_flags

from fedinf_jax.command import main as main


def parse(line):
  """Returns what a binary says of a line that it cannot parse, else nothing."""
  module, *arguments = line
  with tempfile.TemporaryFile("w+") as said:
    child = os.fork()
    if not child:
      os.dup2(said.fileno(), 2)
      sys.argv = [module, *arguments, "--help"]  # Parsed, but then not run.
      with contextlib.redirect_stdout(io.StringIO()):
        try:
          runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as end:
          sys.stderr.flush()
          os._exit(end.code or 0)
      os._exit(1)
    _, status = os.waitpid(child, 0)
    said.seek(0)
    return said.read() if status else ""


if __name__ == "__main__":
  warnings.simplefilter("ignore")  # Of forks: no device is in use yet.
  found = [(line, parse(line)) for line in json.load(sys.stdin)]
  json.dump([(line, error) for line, error in found if error], sys.stdout)
