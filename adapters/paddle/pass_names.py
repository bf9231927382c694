"""What Paddle calls our passes."""

from __future__ import annotations

from onernn.fuse_passes import Applied


def pass_name(applied: Applied) -> str:
    """Paddle's name of a pass that fired on Paddle operators, "" where it has none."""
    types = {op.type for op in applied.origin}
    fc = "fc" if types & {"elementwise_add", "fc"} else "mul"
    for cell in ("gru", "lstm"):
        if applied.name == "linear_rnn" and cell in types:
            return f"{fc}_{cell}_fuse_pass"
    if applied.name == "embedding_rnn" and "lstm" in types:
        return "embedding_fc_lstm_fuse_pass"
    if applied.name == "bidirectional" and types & {"gru", "fusion_gru"}:
        return "multi_gru_fuse_pass"
    if applied.name == "stack_layers" and types & {"gru", "fusion_gru", "multi_gru"}:
        return "multi_gru_seq_fuse_pass"
    if applied.name == "identities" and types <= {"scale", "assign", "dropout"}:
        return "identity_op_clean_pass" if types else ""
    return ""
