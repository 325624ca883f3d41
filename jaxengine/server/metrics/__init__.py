"""What the server counts and how it is read: Recorder and HttpRecorder write, Exposition renders."""

from jaxengine.server.metrics.exposition import Exposition
from jaxengine.server.metrics.http import HttpRecorder
from jaxengine.server.metrics.recorder import Recorder
from jaxengine.server.metrics.targets import SloTargets

__all__ = ["Exposition", "HttpRecorder", "Recorder", "SloTargets"]
