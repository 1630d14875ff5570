"""Gymnasium: schemas from spaces, and wrappers that record steps into buffers."""

from relive.integrations.gymnasium import recorder
from relive.integrations.gymnasium import spaces
from relive.integrations.gymnasium import vector_recorder

EpisodeRecorder = recorder.EpisodeRecorder
Recorder = recorder.Recorder
VectorRecorder = vector_recorder.VectorRecorder
from_env = spaces.from_env
schema_from_spaces = spaces.schema_from_spaces
