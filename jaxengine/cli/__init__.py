"""The `jaxengine` command. The environment is read here and nowhere below."""


class CommandError(Exception):
    """A command could not do its work though it was called rightly; the text says why."""
