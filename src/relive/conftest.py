"""Settings of the tests: what is slow on a busy machine is not wrong."""

import hypothesis

hypothesis.settings.register_profile(
    "relive", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.load_profile("relive")
