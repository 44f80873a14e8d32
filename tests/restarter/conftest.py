"""Made certificates, for servers on loopback."""

from certificates import certificate, make_certificate  # noqa: F401 (fixtures)
