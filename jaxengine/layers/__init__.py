"""The mathematics that models share: pure functions over arrays."""
