"""What the server counts and how it is read: Recorder writes, Exposition renders."""

from jaxengine.server.metrics.exposition import Exposition
from jaxengine.server.metrics.recorder import Recorder
from jaxengine.server.metrics.targets import SloTargets

__all__ = ["Exposition", "Recorder", "SloTargets"]
