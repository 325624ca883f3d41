"""What the README says about names and defaults is so."""

import re

from readme_settings import README, sections, table

import jaxengine
from jaxengine.cli import main


def test_the_table_of_settings_is_current():
    assert sections(README.read_text())[1] == table(), "run python tests/cli/readme_settings.py"


def test_python_examples_name_what_exists():
    code = "\n".join(re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL))
    compile(code, "README.md", "exec")
    imported = re.findall(r"from jaxengine import (.*)", code)
    assert imported
    assert {name.strip() for line in imported for name in line.split(",")} <= set(jaxengine.__all__)


def test_commands_that_are_shown_exist():
    shown = "\n".join(re.findall(r"```sh\n(.*?)```", README.read_text(), re.DOTALL))
    commands = set(re.findall(r"jaxengine (\w+)", shown))
    assert commands
    assert commands <= set(main.COMMANDS)
