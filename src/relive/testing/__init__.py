"""Conformance test suites for samplers, storages and buffers, built-in and custom."""

from relive.testing import buffer_suite
from relive.testing import episode_sampler_suite
from relive.testing import expectations
from relive.testing import sampler_suite
from relive.testing import storage_suite

assert_frequencies = expectations.assert_frequencies
BufferTests = buffer_suite.BufferTests
EpisodeSamplerTests = episode_sampler_suite.EpisodeSamplerTests
SamplerTests = sampler_suite.SamplerTests
StorageTests = storage_suite.StorageTests
