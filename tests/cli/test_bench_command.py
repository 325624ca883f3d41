"""`jaxengine bench` finds its benchmarks; what they measure is tested with them."""

from importlib import import_module

import pytest

from jaxengine.cli import main
from jaxengine.cli.bench import BENCHMARKS


@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_benchmark_explains_itself(capsys, name: str):
    module = import_module(f"jaxengine.bench.{name}")
    with pytest.raises(SystemExit) as leave:
        main.main(["bench", name, "--help"])
    assert leave.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: jaxengine bench {name}")
    assert module.__doc__ is not None
    assert module.__doc__.splitlines()[0] in out


def test_the_list_is_in_the_help(capsys):
    with pytest.raises(SystemExit):
        main.main(["bench", "--help"])
    out = capsys.readouterr().out
    assert all(f"\n  {name} " in out for name in BENCHMARKS)
