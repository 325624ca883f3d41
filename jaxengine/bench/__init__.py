"""Measures speed: `jaxengine bench NAME`.

One module a benchmark, each with `add_arguments(parser)`, `measure(args) -> Report` and `run(args) -> exit
code`. Every speed is the median of several repeats, beside the floor or the peer that was measured in the same
run; the helpers (timing, report, floor, drive, ...) hold one idea each.
"""
