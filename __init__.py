"""Disaggregated prefill/decode serving for hybrid Mamba/attention models.

The rooms are `baton.core`, `baton.engine` and so on; importing this imports none of them.
"""

__version__ = "0.1.0"
