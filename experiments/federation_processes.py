"""The processes of a Flower federation on this machine, and their end."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import uuid

import psutil

MARK = "FEDINF_FEDERATION"  # in the environment of all that is started
PATIENCE = 1800  # seconds for a whole federation


class Processes:
  """Processes that end with the block they are started in."""

  def __init__(self, folder: pathlib.Path):
    """Prepares a folder for what they say.

    Args:
      folder: of their logs, and of Flower's own files.
    """
    self._folder = folder
    self._mark = uuid.uuid4().hex
    folder.mkdir(parents=True, exist_ok=True)
    root = pathlib.Path(__file__).parent.parent
    self._environment = os.environ | {
      MARK: self._mark,
      "FLWR_HOME": str(folder / "flwr"),
      "FLWR_TELEMETRY_ENABLED": "0",
      "FLWR_DISABLE_UPDATE_CHECK": "1",
      "PYTHONPATH": str(root),
      "OPENBLAS_NUM_THREADS": "1",
      "PATH": os.pathsep.join(
        [str(pathlib.Path(sys.executable).parent), os.environ["PATH"]]
      ),
    }

  def __enter__(self):
    # An end by SIGTERM is an end like any other.
    self._before = signal.signal(signal.SIGTERM, _interrupt)
    return self

  def __exit__(self, *unused):
    end(self._marked())
    signal.signal(signal.SIGTERM, self._before)

  def start(self, name: str, *command: str) -> subprocess.Popen:
    """Starts a process whose words go to a file of its name."""
    with open(self._folder / f"{name}.log", "ab") as log:
      return subprocess.Popen(
        command, env=self._environment, stdout=log, stderr=log,
        stdin=subprocess.DEVNULL, start_new_session=True,
      )  # fmt: skip

  def connect(self, port: int):
    """Writes where `flwr run` finds the SuperLink."""
    home = self._folder / "flwr"
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(
      '[superlink]\ndefault = "here"\n\n[superlink.here]\n'
      f'address = "127.0.0.1:{port}"\ninsecure = true\n'
    )

  def _marked(self):
    """Returns all that we started, and what these started."""
    found = []
    for process in psutil.process_iter():
      try:
        if process.environ().get(MARK) == self._mark:
          found.append(process)
      except (psutil.Error, OSError):
        continue  # Not ours, or gone.
    return found


def end(found: list[psutil.Process]):
  """Ends processes: asks first."""
  for process in found:
    try:
      process.terminate()
    except psutil.Error:
      continue
  for process in psutil.wait_procs(found, timeout=5)[1]:
    try:
      process.kill()
    except psutil.Error:
      continue
  psutil.wait_procs(found, timeout=5)


def free_ports(count: int) -> list[int]:
  """Returns loopback ports that nobody listens on."""
  sockets = [socket.socket() for _ in range(count)]
  for one in sockets:
    one.bind(("127.0.0.1", 0))
  ports = [one.getsockname()[1] for one in sockets]
  for one in sockets:
    one.close()
  return ports


def run(
  started: Processes,
  source: pathlib.Path,
  config: dict,
  folder: pathlib.Path,
  victim: int | None,
):
  """Runs a Flower app on a SuperLink and SuperNodes.

  Args:
    started: where processes are started.
    source: the folder of the app.
    config: of the app.
    folder: its workdir.
    victim: the client whose SuperNode is killed after a third of the rounds,
      and started again two rounds later; None: nobody's.
  """
  port, *ports = free_ports(1 + config["num-clients"])
  started.connect(port)
  started.start(
    "superlink", "flower-superlink", "--insecure", "--host", "127.0.0.1",
    "--port", str(port), "--disable-runtime-dependency-installation",
  )  # fmt: skip
  _await_port(port)

  def node(k):
    return started.start(
      f"supernode-{k}", "flower-supernode", "--insecure", "--superlink",
      f"127.0.0.1:{port}", "--host", "127.0.0.1", "--port", str(ports[k]),
      "--node-config", f"partition-id={k}",
    )  # fmt: skip

  nodes = [node(k) for k in range(config["num-clients"])]
  values = " ".join(f"{k}={_toml(v)}" for k, v in config.items())
  running = started.start(
    "run", "flwr", "run", str(source), "here", "--stream", "--run-config",
    values,
  )  # fmt: skip
  last = config["num-rounds"]
  if victim is not None:
    first = max(1, last // 3)
    _await_round(folder, first, running)
    for process in _family(nodes[victim]):
      process.kill()  # It cannot say goodbye.
    _await_round(folder, min(last, first + 2), running)
    node(victim)
  _await_round(folder, last, running)
  # The report is written before the checkpoint, the checkpoint before this.
  _await(lambda: (folder / "checkpoints" / str(last)).is_dir(), running)


def _family(process):
  parent = psutil.Process(process.pid)
  return [parent, *parent.children(recursive=True)]


def _toml(value):
  if isinstance(value, bool):
    return str(value).lower()
  return f'"{value}"' if isinstance(value, str) else str(value)


def _await_port(port):
  def listening():
    with socket.socket() as one:
      return one.connect_ex(("127.0.0.1", port)) == 0

  _await(listening, None)


def _await_round(folder, round_, running):
  path = folder / "attendance.jsonl"

  def reached():
    return path.is_file() and len(path.read_text().splitlines()) >= round_

  _await(reached, running)


def _await(holds, running):
  """Waits until something holds; not for a run that has ended without it."""
  until = time.monotonic() + PATIENCE
  while not holds():
    ended = running is not None and running.poll() is not None
    if (ended and not holds()) or time.monotonic() > until:
      sys.exit("the federation has stopped; see the logs in processes/")
    time.sleep(0.5)


def _interrupt(number, frame):
  raise KeyboardInterrupt
