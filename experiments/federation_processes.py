"""The processes of a Flower federation on this machine, and their end."""

import contextlib
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
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Processes:
  """Processes that end with the block they are started in."""

  def __init__(self, folder: pathlib.Path):
    """Prepares a folder for what they say.

    Args:
      folder: of their logs, and of Flower's own files.
    """
    self._folder = folder
    self._mark = uuid.uuid4().hex
    self._own: list[subprocess.Popen] = []
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
    # An end by a signal is an end like any other.
    self._before = {n: signal.signal(n, _interrupt) for n in SIGNALS}
    return self

  def __exit__(self, *unused):
    for number in SIGNALS:  # Who is impatient must not leave anything behind.
      signal.signal(number, signal.SIG_IGN)
    try:
      until = time.monotonic() + 60
      # What was about to be started while we counted is there the next time.
      while (found := self.marked()) and time.monotonic() < until:
        end(found)
      for process in self._own:  # All have ended; the system may forget them.
        with contextlib.suppress(subprocess.TimeoutExpired):
          process.wait(timeout=5)
    finally:
      for number, handler in self._before.items():
        signal.signal(number, handler)

  def start(self, name: str, *command: str) -> subprocess.Popen:
    """Starts a process whose words go to a file of its name."""
    with open(self._folder / f"{name}.log", "ab") as log:
      process = subprocess.Popen(
        command, env=self._environment, stdout=log, stderr=log,
        stdin=subprocess.DEVNULL, start_new_session=True,
      )  # fmt: skip
    self._own.append(process)
    return process

  def connect(self, port: int):
    """Writes where `flwr run` finds the SuperLink."""
    home = self._folder / "flwr"
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(
      '[superlink]\ndefault = "here"\n\n[superlink.here]\n'
      f'address = "127.0.0.1:{port}"\ninsecure = true\n'
    )

  def marked(self) -> list[psutil.Process]:
    """Returns all that we started, and what these started."""
    found = []
    for process in psutil.process_iter():
      try:
        if process.environ().get(MARK) == self._mark and _alive(process):
          found.append(process)
      except (psutil.Error, OSError):
        continue  # Not ours, or gone.
    return found


def _alive(process):
  return process.status() != psutil.STATUS_ZOMBIE


def end(found: list[psutil.Process]):
  """Ends processes: asks first."""
  for process in found:
    with contextlib.suppress(psutil.Error):
      process.terminate()
  for process in psutil.wait_procs(found, timeout=5)[1]:
    with contextlib.suppress(psutil.Error):
      process.kill()
  psutil.wait_procs(found, timeout=5)


def kill(process: psutil.Process):
  """Kills a process and what it has started: none can say goodbye."""
  for one in [*process.children(recursive=True), process]:
    with contextlib.suppress(psutil.Error):
      one.kill()


def free_ports(count: int) -> list[int]:
  """Returns loopback ports that nobody listens on."""
  sockets = [socket.socket() for _ in range(count)]
  for one in sockets:
    one.bind(("127.0.0.1", 0))
  ports = [one.getsockname()[1] for one in sockets]
  for one in sockets:
    one.close()
  return ports


class Federation:
  """A SuperLink and SuperNodes on loopback ports."""

  def __init__(self, started: Processes, num_clients: int):
    """Starts them.

    Args:
      started: where processes are started.
      num_clients: SuperNodes, one per client.
    """
    self._started = started
    self._port, *self._ports = free_ports(1 + num_clients)
    started.connect(self._port)
    started.start(
      "superlink", "flower-superlink", "--insecure", "--host", "127.0.0.1",
      "--port", str(self._port), "--disable-runtime-dependency-installation",
    )  # fmt: skip
    _await_port(self._port)
    self._nodes = {k: self._node(k) for k in range(num_clients)}

  def _node(self, k):
    return self._started.start(
      f"supernode-{k}", "flower-supernode", "--insecure", "--superlink",
      f"127.0.0.1:{self._port}", "--host", "127.0.0.1", "--port",
      str(self._ports[k]), "--node-config", f"partition-id={k}",
    )  # fmt: skip

  def submit(self, source: pathlib.Path, config: dict) -> subprocess.Popen:
    """Starts a run of an app; the process shows what its server says."""
    values = " ".join(f"{k}={_toml(v)}" for k, v in config.items())
    return self._started.start(
      "run", "flwr", "run", str(source), "here", "--stream", "--run-config",
      values,
    )  # fmt: skip

  def kill_node(self, k: int):
    """Kills the SuperNode of a client with all that it has started."""
    kill(psutil.Process(self._nodes[k].pid))

  def restart_node(self, k: int):
    """Starts it again; Flower gives it another node id."""
    self._nodes[k] = self._node(k)

  def kill_server(self, running: subprocess.Popen):
    """Kills -9 the process that a run's server is, and who watches it."""
    for process in self._started.marked():
      with contextlib.suppress(psutil.Error):
        if any("flwr-serverapp" in part for part in process.cmdline()):
          process.kill()
    kill(psutil.Process(running.pid))


def play(
  federation: Federation,
  source: pathlib.Path,
  config: dict,
  *,
  victim: int | None = None,
  kill_server: bool = False,
):
  """Runs a Flower app to its last round.

  Args:
    federation: who is there.
    source: the folder of the app.
    config: of the app.
    victim: the client whose SuperNode is killed after a third of the rounds,
      and started again two rounds later; None: nobody's.
    kill_server: whether the server is killed after two thirds of the rounds,
      and started again.
  """
  folder, last = pathlib.Path(config["workdir"]), config["num-rounds"]
  happens: dict[int, list[str]] = {}
  if victim is not None:
    first = max(1, last // 3)
    happens.setdefault(first, []).append("kill node")
    happens.setdefault(min(last, first + 2), []).append("restart node")
  if kill_server:
    happens.setdefault(max(1, 2 * last // 3), []).append("kill server")
  running = federation.submit(source, config)
  for round_ in sorted(happens):
    _await_round(folder, round_, running)
    for event in happens[round_]:
      if event == "kill server":
        federation.kill_server(running)
        running = federation.submit(source, config)
      elif victim is not None and event == "kill node":
        federation.kill_node(victim)
      elif victim is not None:
        federation.restart_node(victim)
  _await_round(folder, last, running)
  # The report is written before the checkpoint, the checkpoint before this.
  _await(lambda: (folder / "checkpoints" / str(last)).is_dir(), running)


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
  del frame
  raise KeyboardInterrupt(f"interrupted by {signal.Signals(number).name}")
