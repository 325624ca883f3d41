"""The file that tells an Orbax checkpoint of this project from any other folder."""

MARKER = "jaxengine_checkpoint.json"
VERSION = 1
