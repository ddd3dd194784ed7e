"""The command fedinf, in this process; package_test starts it in its own."""

import json
import shutil

import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet
import pytest

import fedinf_jax as fi
from fedinf_jax.command import flags
from fedinf_jax.command import main
from fedinf_jax.command import own
from fedinf_jax.command import parser
from fedinf_jax.running import task as tasks
from tests import hospitals

QUICK = ("--rounds=2", "--exact=3", "--estimators=truncated")


@pytest.fixture(scope="module")
def rows():
  return hospitals.rows()


@pytest.fixture(scope="module")
def csv(rows, tmp_path_factory):
  return hospitals.csv(tmp_path_factory.mktemp("csv") / "some.csv", rows)


@pytest.fixture
def start(capsys):
  """Runs a command in this process: exit code, output, errors."""

  def run(*argv):
    code = main.main(list(map(str, argv)))
    return code, *capsys.readouterr()

  return run


@pytest.fixture(scope="module")
def found(csv, tmp_path_factory):
  """A finished run with nothing chosen."""
  folder = tmp_path_factory.mktemp("own") / "out"
  assert main.main(["run", f"--clients={csv}", f"--out={folder}"]) == 0
  return folder


def prepared(*argv):
  _, values = parser.parse(["run", "--out=x", *map(str, argv)])
  return own.prepare(values, "test")


@pytest.mark.parametrize("name", flags.COMMANDS)
def test_help_fits_a_screen(name, start):
  for way in ("--help", "-h"):
    code, printed, errors = start(name, way)
    assert code == 0 and not errors
    lines = printed.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 80
    for flag in flags.COMMANDS[name].flags:
      assert f"--{flag.name}" in printed


def test_help_without_a_command(start):
  for argv in ((), ("--help",), ("-h",), ("help",)):
    code, printed, _ = start(*argv)
    assert code == 0 and all(f"  {name} " in printed for name in flags.COMMANDS)
    assert max(map(len, printed.splitlines())) <= 80


BAD = {
  ("rnu",): "unknown command 'rnu'; did you mean run?",
  ("--rounds=3",): "unknown flag '--rounds=3'; there are run, plan",
  ("run", "--clinets=x"): "no flag --clinets; did you mean --clients?",
  ("run", "--local_steps=x"): "no flag --local_steps; did you mean --local-s",
  ("run", "x.csv"): "unexpected argument 'x.csv'; flags start with --",
  ("run",): "--clients=PATH and --out=DIR must be given",
  ("run", "--rounds"): "--rounds: expected one argument",
  ("run", "--rounds=0"): "--rounds: '0' must be a whole number of at least 1",
  ("run", "--cohort=many"): "--cohort: 'many' must be a whole number",
  ("run", "--seed=-1"): "--seed: '-1' must be a whole number",
  ("run", "--learning-rate=nan"): "--learning-rate: 'nan' must be a number ab",
  ("run", "--optimizer=sdg"): "'sdg' must be one of sgd, momentum, adam",
  ("run", "--task=guess"): "'guess' must be one of auto, classification",
  ("run", "--model=forest"): "'forest' must be logreg, mlp, cnn or FILE.py:N",
  ("run", "--exact=some"): "--exact: 'some' must be none, all, a number",
  ("run", "--estimators=booth"): "'booth' is unknown; there are basic",
  ("run", "--out="): "--out: '' must be a path",
  ("plan", "--params=big"): "'big' must be numbers of at least 1",
  ("plan", "--clients=x", "--params=1e3"): "--params is for plans without",
  ("report",): "DIR must be given",
}


@pytest.mark.parametrize(("argv", "words"), BAD.items(), ids=lambda a: str(a))
def test_a_wrong_command_line_is_one_line(argv, words, start):
  refused(start(*argv), words)


def refused(ended, words):
  code, printed, errors = ended
  assert code == 2 and not printed
  assert errors.startswith("error: ") and errors.count("\n") == 1
  assert words in errors


BEFORE_READING = {
  ("--estimators=relu", "--optimizer=adam"): "--optimizer=adam: client_opti",
  (f"--rounds={10**13}",): "bytes of memory",
  ("--model=nowhere.py:net",): "there is no file nowhere.py",
}


@pytest.mark.parametrize(
  ("argv", "words"), BEFORE_READING.items(), ids=lambda a: str(a)
)
def test_what_needs_no_data_is_refused_first(argv, words, start, tmp_path):
  # The clients do not even exist.
  folder = tmp_path / "out"
  refused(start("run", "--clients=no.csv", f"--out={folder}", *argv), words)
  assert not folder.exists()


def spoiled(csv, how):
  """Returns the CSV with one thing wrong."""
  lines = csv.read_text().splitlines()
  for row, change in how.items():
    lines[row] = change(lines[row])
  return "\n".join(lines) + "\n"


swap = lambda a, b: lambda line: line.replace(a, b, 1)
HOSTILE = {
  "no such column": ("", ["--label=cured"], "cured"),
  "no such client column": ("", ["--client=ward"], "ward"),
  "text among numbers": ({4: swap("0.", "abc")}, [], "row 5"),
  "not a number": ({4: lambda s: ",".join(["h00", "nan", *s.split(",")[2:]])},
                   [], "row 5"),
  "a large cohort": ("", ["--cohort=13"], "--cohort=13: there are 12 clients"),
  "too many retrained": ("", ["--exact=13"], "up to 12"),
  "images wanted": ("", ["--model=cnn"], "--model=cnn is for images"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_one_line(name, csv, start, tmp_path):
  how, argv, words = HOSTILE[name]
  path = tmp_path / "bad.csv"
  path.write_text(spoiled(csv, how or {}))
  folder = tmp_path / "out"
  refused(start("run", f"--clients={path}", f"--out={folder}", *argv), words)
  assert not folder.exists()


def test_hostile_clients_are_one_line(csv, start, tmp_path):
  header, *lines = csv.read_text().splitlines()
  (tmp_path / "empty").mkdir()
  latin = tmp_path / "latin.csv"
  latin.write_bytes(csv.read_bytes().replace(b"tal 03", b"t\xe4l 03", 1))
  cases = {
    "single.csv": ([header, *lines[:: hospitals.ROWS]], "--test=PATH"),
    "class.csv": ([header, *(s for s in lines if "ill" in s)], "class"),
    "none.csv": ([header], "none.csv"),
    "empty": (None, "empty: is an empty folder"),
    "latin.csv": (None, "latin.csv"),
    "missing.csv": (None, "missing.csv"),
  }
  for name, (content, words) in cases.items():
    if content is not None:
      (tmp_path / name).write_text("\n".join(content) + "\n")
    out = tmp_path / "out"
    refused(start("run", f"--clients={tmp_path / name}", f"--out={out}"), words)
    assert not out.exists(), name


def test_the_mislabelled_hospital_is_named(found, start, csv):
  summary = json.loads((found / "summary.json").read_text())
  said = " ".join(summary["verdict"])
  assert f"But client {hospitals.BAD} helps its own test examples" in said
  assert f"Next, inspect the data of {hospitals.BAD}" in said
  assert (found / "report.html").is_file()
  # Again: nothing is trained, and the same is said.
  before = (found / "influence.csv").read_bytes()
  code, printed, _ = start("run", f"--clients={csv}", f"--out={found}")
  assert code == 0 and "this run is finished" in printed
  assert all(line in printed for line in summary["verdict"])
  assert (found / "influence.csv").read_bytes() == before


def test_the_same_from_python(csv, capsys):
  clients = fi.FederatedData.from_csv(csv)
  train, held_out = clients.split(0.8, seed=0)
  fed = fi.FedAvg(rounds=50, cohort_size=6, local_steps=5, learning_rate=0.3)
  run = fi.simulate(fi.models.logreg(3, 2), train, fed, exact=True)
  others = run.table(held_out).columns["fil_others_exact"]
  assert train.ids[int(np.argmin(others))] == hospitals.BAD


def test_every_kind_of_file_is_the_same_problem(rows, csv, tmp_path):
  table = hospitals.table(rows)
  pa.parquet.write_table(table, tmp_path / "some.parquet")
  (tmp_path / "some").mkdir()
  for name in hospitals.NAMES:
    part = table.filter(pa.compute.equal(table["hospital"], name))
    hospitals.write(tmp_path / f"some/{name}.csv", part.drop(["hospital"]))
  # What follows is read as it is: it must be standardised already.
  data = fi.data.read(csv).data
  names = np.repeat(data.ids, data.num_examples)
  np.savez(tmp_path / "some.npz", x=data.x, y=data.y, client=names)
  users = {
    name: {"x": x.tolist(), "y": y.tolist()}
    for name, (x, y) in zip(data.ids, data.clients(), strict=True)
  }
  (tmp_path / "leaf/train").mkdir(parents=True)
  (tmp_path / "leaf/train/all.json").write_text(
    json.dumps({"users": list(data.ids), "user_data": users})
  )
  rate = "--learning-rate=0.3"
  first = prepared(f"--clients={csv}", rate)
  for name in ("some.parquet", "some", "some.npz", "leaf"):
    other = prepared(f"--clients={tmp_path / name}", rate)
    assert tasks.digest(other.task) == tasks.digest(first.task), name
    assert other.task.fed == first.task.fed
    assert other.task.recipe == first.task.recipe


def images(folder, rows):
  """Writes bright and dark images, client/label/*.png."""
  draw = np.random.default_rng(0)
  for name, labels in zip(hospitals.NAMES, rows[1], strict=True):
    for i, label in enumerate(labels):
      bright = label != (name == hospitals.BAD)
      image = draw.integers(0, 128, (8, 8), np.uint8) + np.uint8(96 * bright)
      place = folder / name / ("healed", "ill")[int(label)]
      place.mkdir(parents=True, exist_ok=True)
      PIL.Image.fromarray(image).save(place / f"{i}.png")


def test_images_become_a_network(rows, tmp_path):
  images(tmp_path / "images", rows)
  where = f"--clients={tmp_path / 'images'}"
  task = prepared(where, "--learning-rate=0.1").task
  assert task.recipe["model"] == {"kind": "cnn"}
  assert task.train.x.shape[1:] == (8, 8, 1) and task.train.num_clients == 12
  tasks.simulator(task)


@pytest.mark.slow
def test_a_folder_of_images_names_the_hospital(rows, tmp_path, start):
  images(tmp_path / "images", rows)
  argv = f"--clients={tmp_path / 'images'}", f"--out={tmp_path / 'out'}"
  code, printed, _ = start("run", *argv, "--model=logreg")
  assert code == 0
  assert f"begin with {hospitals.BAD};" in printed  # It hurts even in all.


def test_a_regression_has_no_accuracy(rows, tmp_path, start):
  x, _ = rows
  names = np.repeat(hospitals.NAMES, hospitals.ROWS)
  path, out = tmp_path / "targets.npz", tmp_path / "out"
  np.savez(path, x=x.reshape(-1, 3), y=x[..., 0].ravel() / 7, client=names)
  code, printed, _ = start("run", f"--clients={path}", f"--out={out}", *QUICK)
  assert code == 0 and "accuracy –" in printed


def test_flags_are_obeyed(csv, tmp_path):
  model = tmp_path / "mine.py"
  model.write_text(
    "import fedinf_jax as fi\n\n\n"
    "def net(train):\n"
    "  return fi.models.mlp(train.x.shape[1], 2, hidden=(5,))\n"
  )
  lines = csv.read_text().splitlines()
  test = tmp_path / "test.csv"
  test.write_text("\n".join([lines[0], *lines[5::10]]) + "\n")
  made = prepared(
    f"--clients={csv}", f"--test={test}", f"--model={model}:net", "--rounds=7",
    "--cohort=3", "--local-steps=2", "--learning-rate=0.25", "--batch-size=4",
    "--optimizer=momentum", "--estimators=basic,adjoint", "--exact=top:4",
    "--seed=5",
  )  # fmt: skip
  task, fed = made.task, made.task.fed
  assert (fed.rounds, fed.cohort_size, fed.local_steps) == (7, 3, 2)
  assert fed.batch_size == 4 and fed.client_optimizer is not None
  assert task.recipe["fed"]["learning_rate"] == 0.25
  assert list(task.estimators) == ["basic"] and list(task.passes) == ["adjoint"]
  assert task.exact.count == 4 and task.seed == 5
  assert len(task.train.x) == 240 and len(task.x) == 24
  assert task.model.param_shapes()["dense1"]["kernel"].shape == (3, 5)
  np.testing.assert_array_equal(task.owners.counts, 12 * [2])
  for words in ("mine.py:net, 7 rounds of 3", "0.25 (momentum)", "top:4"):
    assert words in made.line


def test_test_rows_of_strangers_are_nobody_s(csv, tmp_path):
  # One of the clients is called nobody.
  text = csv.read_text().replace(hospitals.NAMES[3], "nobody")
  clients = tmp_path / "clients.csv"
  clients.write_text(text)
  lines = text.splitlines()
  some = [*lines[1 :: hospitals.ROWS], *lines[2:5]]
  test = tmp_path / "test.csv"
  renamed = [line.replace(hospitals.NAMES[0], "stranger") for line in some]
  test.write_text("\n".join([lines[0], *renamed]) + "\n")
  task = prepared(
    f"--clients={clients}", f"--test={test}", "--learning-rate=0.1"
  ).task
  own = dict(zip(task.owners.client.tolist(), task.owners.counts, strict=True))
  assert own == {-1: 4} | dict.fromkeys(range(1, 12), 1)


def test_targets_of_images_are_a_linear_model_s(rows, tmp_path):
  images = np.zeros((240, 8, 8), np.uint8)
  names = np.repeat(hospitals.NAMES, hospitals.ROWS)
  path = tmp_path / "targets.npz"
  np.savez(path, x=images, y=rows[0][..., 0].ravel() / 7, client=names)
  task = prepared(f"--clients={path}", "--learning-rate=0.1").task
  assert task.recipe["model"] == {"kind": "logreg"}


def test_a_server_has_its_part_of_the_held_out_rows(csv):
  task = prepared(f"--clients={csv}", "--estimators=server").task
  assert len(task.server_data.x) == len(task.x) == 24


@pytest.mark.parametrize(
  ("content", "words"),
  [
    ("net = 5", "net is a int; it must be a fi.Model"),
    ("x = 5", "the file defines no net"),
    ("net = lambda train: 5", "returned a int"),
    ("raise KeyError('no')", "fails: 'no'"),
  ],
)
def test_a_model_that_is_none_is_refused(content, words, csv, start, tmp_path):
  file = tmp_path / "mine.py"
  file.write_text(content)
  argv = f"--clients={csv}", f"--out={tmp_path / 'out'}", f"--model={file}:net"
  refused(start("run", *argv), words)


def test_nothing_is_written_over(found, csv, start, tmp_path):
  before = {p: p.read_bytes() for p in found.rglob("*") if p.is_file()}
  code, printed, errors = start(
    "run", f"--clients={csv}", f"--out={found}", "--rounds=9"
  )
  assert code == 2 and "retrained without" in printed
  assert f"--out={found} holds another run" in errors
  assert "workdir" not in errors and errors.count("\n") == 1
  changed = tmp_path / "other.csv"
  changed.write_text(csv.read_text().replace("ill", "sick"))
  assert start("run", f"--clients={changed}", f"--out={found}")[0] == 2
  assert {p: p.read_bytes() for p in found.rglob("*") if p.is_file()} == before
  (tmp_path / "full").mkdir()
  (tmp_path / "full" / "thesis.tex").touch()
  argv = f"--clients={csv}", f"--out={tmp_path / 'full'}"
  refused(start("run", *argv), "is not empty and holds no run (thesis.tex)")


def test_a_report_is_drawn_again(found, start, tmp_path):
  again = shutil.copytree(found, tmp_path / "again")
  (again / "report.html").unlink()
  code, printed, _ = start("report", again)
  assert code == 0 and printed.strip() == str(again / "report.html")
  assert (again / "report.html").read_bytes() == (
    found / "report.html"
  ).read_bytes()
  refused(start("report", tmp_path / "no"), "is not a finished run")
  assert not (tmp_path / "no").exists()


def test_plans(csv, start, monkeypatch):
  monkeypatch.setattr(main.plans, "peak", lambda: 1e11)  # A busy machine's.
  code, printed, _ = start("plan", f"--clients={csv}", "--exact=none")
  assert code == 0 and "memory in all" in printed and "50 rounds" in printed
  code, printed, _ = start("plan", "--num-clients=1e3", "--params=1e4")
  assert code == 0 and "1e3" in printed and "1 × 1" in printed
