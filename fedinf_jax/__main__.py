"""Starts the command fedinf; `python -m fedinf_jax` is the same."""

from fedinf_jax.command import main as command


def main():
  """Runs the command of this process's arguments, and ends it."""
  command.start()


if __name__ == "__main__":
  main()
