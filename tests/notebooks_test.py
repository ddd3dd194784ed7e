"""The notebooks, executed from top to bottom."""

import json
import pathlib
import tempfile

import matplotlib
import pytest

FOLDER = pathlib.Path(__file__).parent.parent / "examples" / "notebooks"
# What a notebook must have printed.
PRINTED = {
  "own_clients": [
    "ours hurts the others most: shop 7\n",
    "exact hurts the others most: shop 7\n",
    "report.html\n",
  ],
  "find_the_bad_client": [
    "bad: (0, 4, 18)\n4 -0.05",
    "influence      1.00\n",
    "cleansed  accuracy 0.8",
  ],
}


@pytest.mark.slow
@pytest.mark.parametrize(
  "path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem
)
def test_notebooks_run(path, enable_x32, capsys, monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
  notebook = json.loads(path.read_text())
  assert notebook["nbformat"] == 4
  names = {}
  with matplotlib.rc_context({"backend": "agg"}):
    for number, cell in enumerate(notebook["cells"]):
      assert not cell.get("outputs"), "kept without outputs, which would age"
      if cell["cell_type"] == "code":
        code = "".join(cell["source"])
        exec(compile(code, f"{path.name}, cell {number}", "exec"), names)
  printed = capsys.readouterr().out
  for words in PRINTED[path.stem]:
    assert words in printed
