"""How published tensors become parameters: the small language that each family's name map is written in."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """Published tensors that make one parameter.

    One tensor is reshaped to the parameter's shape; several are each reshaped to shape[1:] and stacked on
    axis 0. `add_one`: the checkpoint holds w where the model multiplies by 1 + w (Gemma's norms).
    """

    names: tuple[str, ...]
    add_one: bool = False


NameMap = dict[str, "str | Source"]     # dotted parameter path, as "layers.3.wq" -> source


def stack(*names: str) -> Source:
    return Source(names)


def one_plus(name: str) -> Source:
    return Source((name,), add_one=True)


def source(entry: str | Source) -> Source:
    return Source((entry,)) if isinstance(entry, str) else entry
