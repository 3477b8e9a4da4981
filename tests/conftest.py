"""What every test is run under: an example that hypothesis draws is judged by what it finds, not by how long it takes."""

from hypothesis import HealthCheck, settings

# A profile of its own, for hypothesis chooses another one where the variable CI is set: what passes there must pass everywhere.
settings.register_profile("groupclip", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("groupclip")
