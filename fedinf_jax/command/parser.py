"""The command line of fedinf: read, explained, and corrected if it is wrong."""

import argparse
import difflib
from typing import Any

from fedinf_jax.command import flags

HELP = ("-h", "--help", "-help", "help")


def parse(argv: list[str]) -> tuple[str, dict[str, Any]] | str:
  """Reads a command line.

  Args:
    argv: without the program.

  Returns:
    The command's name and its flags by name, dashes as underscores; or the text
    that was asked for.

  Raises:
    ValueError: in one line, with what was probably meant.
  """
  if not argv or argv[0] in HELP:
    return overview()
  name, *rest = argv
  if name not in flags.COMMANDS:
    kind = "flag" if name.startswith("-") else "command"
    raise ValueError(
      f"unknown {kind} {name!r}; {_meant(name, flags.COMMANDS)}there are"
      f" {', '.join(flags.COMMANDS)}"
    )
  if any(argument in HELP[:-1] for argument in rest):
    return help_text(name)
  return name, _values(name, rest)


def overview() -> str:
  """Returns what --help prints before a command."""
  lines = [
    "Which clients help a federated model, and which hurt it?",
    "",
    "fedinf COMMAND [--help]",
    "",
  ]
  for name, command in flags.COMMANDS.items():
    lines.append(f"  {name:8} {command.help}")
  return "\n".join(
    [
      *lines,
      "",
      "A first look:   fedinf demo",
      "Your own data:  fedinf run --clients=hospitals.csv --out=runs/hospitals",
    ]
  )


def help_text(name: str) -> str:
  """Returns what --help of a command prints; it fits 80 × 24 characters."""
  command = flags.COMMANDS[name]
  lines = [f"{command.help}.", "", f"fedinf {name} {command.usage}", ""]
  for flag in command.flags:
    start = f"  --{flag.name}" + (f"={flag.value}" if flag.value else "")
    lines.append(f"{start:24} {flag.help}")
  return "\n".join(lines + [command.more] * bool(command.more)).rstrip()


class _Parser(argparse.ArgumentParser):
  """Raises, where argparse would print its usage and end the process."""

  def error(self, message):
    raise ValueError(message.removeprefix("argument "))


def _values(name, argv):
  """Returns the values of a command's flags."""
  command = flags.COMMANDS[name]
  parser = _Parser(add_help=False, allow_abbrev=False)
  for flag in command.flags:
    if flag.value:
      parser.add_argument(
        f"--{flag.name}", type=_reader(flag.read), default=flag.default
      )
    else:
      parser.add_argument(f"--{flag.name}", action="store_true")
  for place in command.places:
    parser.add_argument(place, nargs="?")
  parsed, left = parser.parse_known_args(argv)
  if left:
    raise ValueError(_unknown(name, left[0]))
  values = vars(parsed)
  needed = [flag for flag in command.flags if flag.needed]
  lacking = [f"--{f.name}={f.value}" for f in needed if values[f.name] is None]
  lacking += [place for place in command.places if values[place] is None]
  if lacking:
    raise ValueError(f"{' and '.join(lacking)} must be given; see --help")
  return values


def _reader(read):
  """Returns what argparse calls."""

  def checked(text):
    try:
      return read(text)
    except ValueError as error:
      # argparse drops the words of a ValueError.
      raise argparse.ArgumentTypeError(f"{text!r} {error}") from error

  return checked


def _unknown(name, argument):
  """Says what was wrong with an argument, and what was probably meant."""
  if not argument.startswith("-"):
    return f"unexpected argument {argument!r}; flags start with --"
  flag = argument.partition("=")[0]
  known = [f"--{flag.name}" for flag in flags.COMMANDS[name].flags]
  return (
    f"fedinf {name} has no flag {flag}; {_meant(flag, known)}see fedinf"
    f" {name} --help"
  )


def _meant(name, known):
  dashed = name.replace("_", "-")
  if name[:1] == "-":
    dashed = f"--{dashed.lstrip('-')}"
  near = difflib.get_close_matches(dashed, known, 1)
  return f"did you mean {near[0]}? " if near else ""
