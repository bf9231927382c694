"""What a framework's users call our passes."""

from __future__ import annotations

from onernn.fuse_passes import Applied


def native_pass(applied: Applied) -> str:
    """Paddle's name of a pass that fired on Paddle operators, "" where it has none."""
    types = {op.type for op in applied.origin}
    if applied.name == "linear_rnn" and "gru" in types:
        return "fc_gru_fuse_pass" if types & {"elementwise_add", "fc"} else "mul_gru_fuse_pass"
    if applied.name == "bidirectional" and types & {"gru", "fusion_gru"}:
        return "multi_gru_fuse_pass"
    return ""
