"""Names of registered identities, for those who only make or look for their files."""

from __future__ import annotations

USE = "2.25.189703641287352093217750386422419208"
"""What a node's certificate is for, and no other certificate of the authority: as an extended key usage."""
CERTIFICATE, AUTHORITY, KEY = "node.crt", "ca.crt", "node.key"
"""The files in a node's folder of keys."""
