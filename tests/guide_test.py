"""What the documents show is run as it stands there."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PAGES = ("docs/guide.md", "README.md")


@pytest.mark.parametrize("page", PAGES)
def test_python_blocks_run(page, capsys, enable_x32):
  text = (ROOT / page).read_text()
  names = {}
  for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
    exec(compile(block, page, "exec"), names)
  printed = capsys.readouterr().out
  if page == "docs/guide.md":
    assert "ours hospital 0 -" in printed
    assert "exact hospital 0 -" in printed
    assert "read off:" in printed


def test_the_first_example_of_the_guide_is_short():
  text = (ROOT / "docs/guide.md").read_text()
  block = re.search(r"```python\n(.*?)```", text, re.DOTALL).group(1)
  code = [line for line in block.splitlines() if line.strip()]
  assert len(code) <= 25
